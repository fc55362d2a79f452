"""The secrets of one step: keys of coins and of noise, which a query gets through `RowSum.with_secrets` only."""

from dataclasses import dataclass, field

from dpca_tasks.noise.keystream import SecretKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSecrets:
    """The secrets of a step that a query may use; no repr and no digest contains them.

    Parameters
    ----------
    release_coins : SecretKey
        The key of coins that all steps of a release share.
    step_coins : SecretKey
        The key of coins that are fresh for every step.
    noise : SecretKey
        The key of this request's noise.
    noise_scale : float, grid steps
        The scale of that noise.
    """

    release_coins: SecretKey = field(repr=False)
    step_coins: SecretKey = field(repr=False)
    noise: SecretKey = field(repr=False)
    noise_scale: float
