"""Public names that are not called, and misuses that are valid all the same."""

# public, and not called with arguments that could be misused; a protocol is not either
RESULTS = (
    "Fit Bands Selection LocalFit LikelihoodFit QuantileFit Box Choice Result Starts "
    "AverageDerivative BootstrapTest DegreesOfFreedom Discontinuity Report Sample SoftmaxState "
    "WeightedPowerMeans MatrixState LeastSquaresState LinearState Task Rows Estimate DataSupport "
    "LinearCoefficients Dataset"
)
FOR_AUTHORS_INSIDE_JIT = (
    "unbounded rescaled category_counts periods PointBoxes Features PositionBlock KeyMask "
    "dense_weights advance identity_of Row"
)
EXCLUDED = {"HasDeviance", *RESULTS.split(), *FOR_AUTHORS_INSIDE_JIT.split()}

# what is valid all the same: (callable, argument, misuse)
HEADS = "an array has a number for each head, for `PerHead`"
TRACED = "the number may be known at run time alone"
SHAPES = "of the arrays only shapes and dtypes matter"
ANY_SHAPE = "a function of each number, whatever the shape"
LEGAL = {
    ("econometrics.PartiallyLinear", "linear", "two"): "several columns",
    ("recurrent.regress", "rate", "a single number"): "the rate of all rows",
    ("nn.RecurrentCache", "state", "an array"): "a tree of one array",
    **{
        (name, argument, "an array of three axes"): HEADS
        for name, argument in (
            ("kernels.RationalQuadratic", "alpha"),
            ("Periodic", "lengthscale"),
            ("Periodic", "period"),
            ("DotProduct", "scale"),
            ("kernels.CosineSimilarity", "scale"),
            ("kernels.Polynomial", "offset"),
            ("kernels.Polynomial", "scale"),
            ("kernels.SoftCapped", "cap"),
            ("Alibi", "slope"),
            ("Softmax", "temperature"),
            ("Softmax", "sink_mass"),
            ("Softmax of a logarithm", "log_sink_mass"),
            ("Entmax", "temperature"),
            ("priors.Kerple", "rate"),
            ("priors.Kerple", "scale"),
            ("fixed", "value"),
        )
    },
    **{
        (name, argument, "traced"): TRACED
        for name, argument in (
            ("Causal", "offset"),
            ("Window", "left"),
            ("Window", "right"),
            ("priors.Prefix", "length"),
            ("priors.Lengths", "queries"),
            ("priors.Lengths", "keys"),
            ("HoldOut", "size"),
            ("MultiheadAttention.step", "count"),
            ("nn.KVCache.append", "count"),
            ("nn.KVCache.keep", "count"),
            ("nn.KVCache.keep", "length"),
            ("quantiles", "levels"),
        )
    },
    **{
        ("select_method", argument, misuse): SHAPES
        for argument in ("q", "k", "v")
        for misuse in ("NaN", "inf")
    },
    **{
        (name, "x", misuse): ANY_SHAPE
        for name in ("data.heteroskedastic_mean", "data.heteroskedastic_sd")
        for misuse in ("a single number", "three axes more")
    },
    **{
        ("plot.points", argument, misuse): "matplotlib leaves such a point out"
        for argument in ("x", "y")
        for misuse in ("NaN", "inf", "a Series with a gap")
    },
    **{
        ("save", "model", misuse): "plain data can be saved"
        for misuse in ("None", "a word", "a number", "an array")
    },
    **{
        (f"sklearn.{name}", "lengthscale", misuse): reason
        for name in ("KernelRegressor", "KernelClassifier")
        for misuse, reason in (
            ("inf", "the column does not matter"),
            ("huge", "float64 holds it, and the column does not matter"),
        )
    },
    ("kernels.AitchisonAitken", "categories", "two"): "one number per column",
    **{
        (name, argument, "huge"): "the name of a group"
        for name, argument in (
            ("objectives.GroupKFold", "groups"),
            ("bands", "clusters"),
            ("econometrics.average_derivative", "clusters"),
        )
    },
    ("OnColumns", "columns", "two"): "several columns",
    **{
        ("OnColumns", "columns", misuse): "the name of a column of a frame"
        for misuse in ("a word", "words", "a digit")
    },
    ("NearestNeighbours", "fraction", "one"): "all keys",
    ("kernels.convert_lengthscale", "lengthscale", "an array of three axes"): ANY_SHAPE,
    ("MultiheadAttention", "dropout_p", "zero"): "no dropout",
    **{
        (f"{layer}.__call__", "mask", "numbers"): "0 is False, as Equinox reads integers"
        for layer in (
            *("MultiheadAttention", "nn.LatentAttention"),
            *("nn.PersistentMemory", "nn.BiasReducedAttention"),
        )
    },
    ("methods.Sharded", "axis", "misspelt"): "without a mesh it names the axis of a new one",
    ("quantiles", "levels", "two"): "several levels",
    ("plot.weights", "queries", "a single number"): "one query",
    ("data.heteroskedastic_sd", "x", "inf"): "it is infinite there",
}
# the result says so itself: it is NaN (or infinite) where the argument is
NOT_FINITE = {
    (name, argument, misuse)
    for name, argument in (
        ("squared_error", "prediction"),
        ("squared_error", "y"),
        ("losses.absolute_error", "prediction"),
        ("losses.absolute_error", "y"),
        ("losses.CheckLoss.__call__", "prediction"),
        ("losses.CheckLoss.__call__", "y"),
        ("objectives.log_score", "y"),
        ("LocalLikelihood.deviance", "prediction"),
        ("LocalLikelihood.deviance", "y"),
        ("RobustRegression.deviance", "prediction"),
        ("RobustRegression.deviance", "y"),
        ("LocalQuantile.deviance", "prediction"),
        ("LocalQuantile.deviance", "y"),
        ("data.heteroskedastic_mean", "x"),
        ("data.heteroskedastic_sd", "x"),
        ("MultiheadAttention.__call__", "query"),
        ("MultiheadAttention.__call__", "key_"),
        ("MultiheadAttention.__call__", "value"),
    )
    for misuse in ("NaN", "inf", "a Series with a gap")
}
WITHOUT_RESULT = {"plot.interact", "save"}
