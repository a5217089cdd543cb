"""Kernels: log K(q, k), the content half of a score."""

from ._adaptive import NearestNeighbours as NearestNeighbours
from ._base import (
    Embedded as Embedded,
    Kernel as Kernel,
    checked_log_pair,
    unbounded as unbounded,
)
from ._boxes import PointBoxes as PointBoxes
from ._categorical import (
    AitchisonAitken as AitchisonAitken,
    Categorical as Categorical,
    LiRacine as LiRacine,
    LiRacineOrdered as LiRacineOrdered,
    WangVanRyzin as WangVanRyzin,
)
from ._columns import OnColumns as OnColumns, number_columns
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
from ._conventions import CONVENTIONS, convert_lengthscale as convert_lengthscale
from ._features import (
    EluFeatures as EluFeatures,
    Features as Features,
    FiniteRank as FiniteRank,
    RandomFeatures as RandomFeatures,
    Taylor as Taylor,
    in_units,
)
from ._gaussian import (
    Cauchy as Cauchy,
    Gaussian as Gaussian,
    RationalQuadratic as RationalQuadratic,
)
from ._inner import (
    AdditiveScore as AdditiveScore,
    Bilinear as Bilinear,
    CosineSimilarity as CosineSimilarity,
    DotProduct as DotProduct,
    Polynomial as Polynomial,
)
from ._matern import Laplace as Laplace, Matern32 as Matern32, Matern52 as Matern52
from ._periodic import Periodic as Periodic
from ._product import Product as Product
from ._projected import Projected as Projected, SoftCapped as SoftCapped
from ._radial import Radial as Radial
from ._rescaled import Rescaled as Rescaled
from ._scaled import Scaled as Scaled
from ._wrapper import Wrapper as Wrapper
