"""Records that a query should read and that are gone: by `failOnDataLoss`."""

from __future__ import annotations

import logging

from ..errors import HeadraceError
from .options import SourceOptions

log = logging.getLogger(__name__)


class DataLossError(HeadraceError):
    """Records of a range are not in the log any more, and failOnDataLoss is true."""


def report_loss(text: str, options: SourceOptions, cause: BaseException | None = None) -> None:
    """A warning, or with failOnDataLoss=true a DataLossError."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. With failOnDataLoss=false the query goes on") from cause
    log.warning("%s", text)
