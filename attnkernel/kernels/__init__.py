"""Kernels: log K(q, k), the content half of a score."""

from ._adaptive import NearestNeighbours as NearestNeighbours
from ._base import (
    Embedded as Embedded,
    Kernel as Kernel,
    PointBoxes as PointBoxes,
    Wrapper as Wrapper,
    category_counts as category_counts,
    checked_log_pair,
    periods as periods,
    shortest_way,
    unbounded as unbounded,
)
from ._categorical import (
    AitchisonAitken as AitchisonAitken,
    Categorical as Categorical,
    LiRacine as LiRacine,
    LiRacineOrdered as LiRacineOrdered,
    WangVanRyzin as WangVanRyzin,
)
from ._compact import (
    Biweight as Biweight,
    Boxcar as Boxcar,
    Compact as Compact,
    Cosine as Cosine,
    Epanechnikov as Epanechnikov,
    Triangular as Triangular,
    Tricube as Tricube,
    Triweight as Triweight,
)
from ._features import (
    EluFeatures as EluFeatures,
    Features as Features,
    FiniteRank as FiniteRank,
    RandomFeatures as RandomFeatures,
    Taylor as Taylor,
    in_units,
)
from ._inner import (
    AdditiveScore as AdditiveScore,
    Bilinear as Bilinear,
    CosineSimilarity as CosineSimilarity,
    DotProduct as DotProduct,
    Polynomial as Polynomial,
)
from ._of_columns import of_columns as of_columns
from ._radial import Radial as Radial
from ._radial_kernels import (
    Cauchy as Cauchy,
    Gaussian as Gaussian,
    Laplace as Laplace,
    Matern32 as Matern32,
    Matern52 as Matern52,
    RationalQuadratic as RationalQuadratic,
)
from ._scaled import (
    CONVENTIONS,
    LETTERS,
    Periodic as Periodic,
    Scaled as Scaled,
    convert_lengthscale as convert_lengthscale,
)
from ._wrappers import (
    OnColumns as OnColumns,
    Product as Product,
    Projected as Projected,
    Rescaled as Rescaled,
    SoftCapped as SoftCapped,
    number_columns,
    rescaled as rescaled,
)

# those that are made of a lengthscale alone, by the names that configs and scikit-learn take
BY_NAME: dict[str, type[Scaled]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
    "cauchy": Cauchy,
    "boxcar": Boxcar,
    "triangular": Triangular,
    "epanechnikov": Epanechnikov,
    "biweight": Biweight,
    "triweight": Triweight,
    "tricube": Tricube,
    "cosine": Cosine,
}
