"""The table of rankings: what scores nodes and orders devices under each name."""

from collections.abc import Mapping
from typing import Final

from tessera.policy.baselines import BEST_FIT, DOT_PRODUCT, GPU_CLUSTERING, GPU_PACKING, RANDOM
from tessera.policy.fill import BINPACK, SPREAD
from tessera.policy.fragment import FGD
from tessera.policy.pwr import PWR
from tessera.policy.rank import Ranking
from tessera.policy.score import Scorer

SCORERS: Final[Mapping[Ranking, Scorer]] = {
    Ranking.BINPACK: BINPACK,
    Ranking.SPREAD: SPREAD,
    Ranking.FGD: FGD,
    Ranking.BEST_FIT: BEST_FIT,
    Ranking.DOT_PRODUCT: DOT_PRODUCT,
    Ranking.GPU_PACKING: GPU_PACKING,
    Ranking.GPU_CLUSTERING: GPU_CLUSTERING,
    Ranking.RANDOM: RANDOM,
    Ranking.PWR: PWR,
}
