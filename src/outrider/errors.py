"""Every error a user can cause, on one page.

OutriderError
├── ConfigError (ValueError)       a setting, flag or key that cannot work
├── RequestError (ValueError)      one request that cannot be served; its neighbours go on
├── CapabilityError (ConfigError)  this runner, drafter and verifier do not go together
├── ModelError (ValueError)        a model or file that cannot be read
├── FetchError (OSError)           weights that could not be downloaded or stored
└── ProcessLostError               one of several processes that train together has ended

The message names the value, the limit, and what to do. The CLI prints it as one line and exits with 2;
any other exception is a bug of ours and keeps its traceback.
"""


class OutriderError(Exception):
    """Root of all errors a user can cause."""


class ConfigError(OutriderError, ValueError):
    """A setting that cannot work: unknown key, value out of range, wrong combination."""


class CapabilityError(ConfigError):
    """The chosen runner, drafter and verifier lack something the combination needs."""


class RequestError(OutriderError, ValueError):
    """One request that cannot be served as asked."""


class ModelError(OutriderError, ValueError):
    """A model, checkpoint or tokenizer that cannot be read or used."""


class FetchError(OutriderError, OSError):
    """Weights that could not be fetched, checked or stored."""


class ProcessLostError(OutriderError):
    """One of several processes that train together has ended, so that none of them can go on."""
