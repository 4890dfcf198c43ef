"""Members of the model's families that no shipped config uses, and the policy of sources for servers.

Importing this package registers them. `ArrCocConfig.save_pretrained` and `arr-coc build` copy the files that a config
needs into its checkpoint.
"""

from .map_scorers import MapScorer as MapScorer
from .mask_compressor import MaskCompressor as MaskCompressor
from .public_sources import GuardedSources as GuardedSources
from .quality_bridges import QualityBridge as QualityBridge
from .relevance_maps import RELEVANCE_MAPS as RELEVANCE_MAPS
from .tempering import TemperingPolicy as TemperingPolicy
from .tier_classifier import TierClassifier as TierClassifier
