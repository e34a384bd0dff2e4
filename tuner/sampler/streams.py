"""Seeds: an independent stream of chance for every proposal and purpose, all from one study's seed."""

import numpy as np


def seed_of(study_seed: int, number: int, purpose: int = 0) -> int:
    """A seed for one proposal: independent streams for every number and purpose, from one study's seed."""
    return int(np.random.SeedSequence([study_seed, number, purpose]).generate_state(1)[0])
