"""Public names that are not called, and misuses that are valid all the same."""

# public, and not called with arguments that could be misused; a protocol is not either
RESULTS = (
    "Fit Bands Selection LocalFit LikelihoodFit QuantileFit Box Choice Result Starts "
    "AverageDerivative BootstrapTest DegreesOfFreedom Discontinuity Report Sample SoftmaxState "
    "WeightedPowerMeans MatrixState LeastSquaresState LinearState Task Rows Estimate DataSupport "
    "LinearCoefficients Dataset Votes"
)
FOR_AUTHORS_INSIDE_JIT = (
    "unbounded rescaled category_counts periods PointBoxes Features PositionBlock PairMask "
    "dense_weights advance identity_of Row"
)
# plotnine calls `smooth`
EXCLUDED = {"HasDeviance", "smooth", *RESULTS.split(), *FOR_AUTHORS_INSIDE_JIT.split()}

SKLEARN = ("sklearn.KernelRegressor", "sklearn.KernelClassifier")
WITH_MASKS = (
    *("MultiheadAttention.__call__", "nn.LatentAttention.__call__"),
    *("nn.PersistentMemory.__call__", "nn.BiasReducedAttention.__call__"),
)


def cases(callables: dict[str, str], *misuses: str) -> set[tuple[str, str, str]]:
    """The misuses of arguments of callables: (callable, argument, misuse)."""
    return {
        (name, argument, misuse)
        for name, arguments in callables.items()
        for argument in arguments.split()
        for misuse in misuses
    }


# what is valid all the same
LEGAL: set[tuple[str, str, str]] = set().union(
    # an array has a number for each head, for `PerHead`
    cases(
        {
            "kernels.RationalQuadratic": "alpha",
            "Periodic": "lengthscale period",
            "DotProduct": "scale",
            "kernels.CosineSimilarity": "scale",
            "kernels.Polynomial": "offset scale",
            "kernels.SoftCapped": "cap",
            "Alibi": "slope",
            "Softmax": "temperature sink_mass",
            "Softmax of a logarithm": "log_sink_mass",
            "Entmax": "temperature",
            "priors.Kerple": "rate scale",
            "fixed": "value",
        },
        "an array of three axes",
    ),
    # the number may be known at run time alone
    cases(
        {
            "Causal": "offset",
            "Window": "left right",
            "priors.Prefix": "length",
            "priors.Lengths": "queries keys",
            "HoldOut": "size",
            "objectives.ExpectedHoldOut": "size",
            "MultiheadAttention.step": "count",
            "nn.KVCache.append": "count",
            "nn.KVCache.keep": "count length",
            "quantiles": "levels",
        },
        "traced",
    ),
    # of the arrays only shapes and dtypes matter
    cases({"attention.select_method": "q k v"}, "NaN", "inf"),
    # a function of each number, whatever the shape
    cases(
        {"data.heteroskedastic_mean": "x", "data.heteroskedastic_sd": "x"},
        "a single number",
        "three axes more",
    ),
    cases({"kernels.convert_lengthscale": "lengthscale"}, "an array of three axes"),
    cases({"kernels.of_columns": "kernel"}, "a class"),
    # matplotlib leaves such a point out
    cases({"plot.points": "x y"}, "NaN", "inf", "a Series with a gap"),
    # plain data can be saved
    cases({"save": "model"}, "None", "a word", "a number", "an array"),
    # the column does not matter; float64 holds what is huge
    cases(dict.fromkeys(SKLEARN, "lengthscale"), "inf", "huge"),
    # the name of a group
    cases(dict.fromkeys(("bands", "econometrics.average_derivative"), "clusters"), "huge"),
    cases({"objectives.GroupKFold": "groups"}, "huge"),
    # the name of a column of a frame
    cases({"OnColumns": "columns"}, "a word", "words", "a digit"),
    # 0 is False, as Equinox reads integers
    cases(dict.fromkeys(WITH_MASKS, "mask"), "numbers"),
    # several columns, levels, and a number per column
    cases(
        {
            "econometrics.PartiallyLinear": "linear",
            "OnColumns": "columns",
            "quantiles": "levels",
            "kernels.AitchisonAitken": "categories",
            "kernels.LiRacine": "categories",
        },
        "two",
    ),
    # the rate of all rows; one query
    cases(
        {"recurrent.regress": "rate", "plot.weights": "queries", "plot.votes": "x_new"},
        "a single number",
    ),
    # keys without values
    cases({"votes": "k"}, "no rows", "a row less", "a row more"),
    # a tree of one array
    cases({"nn.RecurrentCache": "state"}, "an array"),
    # all keys; no dropout
    cases({"NearestNeighbours": "fraction"}, "one"),
    cases({"MultiheadAttention": "dropout_p"}, "zero"),
    # without a mesh it names the axis of a new one
    cases({"methods.Sharded": "axis"}, "misspelt"),
    # it is infinite there
    cases({"data.heteroskedastic_sd": "x"}, "inf"),
)
# the result says so itself: it is NaN (or infinite) where the argument is
NOT_FINITE = cases(
    {
        "squared_error": "prediction y",
        "losses.absolute_error": "prediction y",
        "losses.CheckLoss.__call__": "prediction y",
        "objectives.log_score": "y",
        "LocalLikelihood.deviance": "prediction y",
        "RobustRegression.deviance": "prediction y",
        "LocalQuantile.deviance": "prediction y",
        "data.heteroskedastic_mean": "x",
        "data.heteroskedastic_sd": "x",
        "MultiheadAttention.__call__": "query key_ value",
    },
    *("NaN", "inf", "a Series with a gap"),
)
WITHOUT_RESULT = {"plot.interact", "plot.show", "save"}
