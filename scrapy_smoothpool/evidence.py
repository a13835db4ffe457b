"""From the end of a download to what the pool is told of it.

The outcome policy says what a response or an exception means; what else it tells
(a refused login, a wish to be left alone, a reason in words) is added here. The
same for pages and for the checks of proxies that no page has used yet.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from . import stats as names
from .failures import describe, is_descriptor_exhaustion, is_login_fault, retry_after
from .judge import Evidence
from .outcome import Outcome

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from .policies import Policy
    from .stats import Stats

logger = logging.getLogger(__name__)

_SUCCESS = Outcome.SUCCESS  # asked for at every request, and Python 3.11 looks it up for 0.3 µs


@lru_cache(maxsize=1_000)
def _success(site: str) -> Evidence:
    return Evidence(_SUCCESS, site, answered=True)


class Classifier:
    """Turns responses and exceptions into evidence.

    :param policy: asked for the outcome; if it fails, the outcome is neutral.
    :param stats: counts the policy's failures; None for downloads that are not
        the crawl's own.
    """

    def __init__(self, policy: Policy, stats: Stats | None = None) -> None:
        self.policy = policy
        self._stats = stats
        self._policy_failed = False
        self._descriptors_told = False

    def evidence(
        self,
        request: Request,
        response: Response | None,
        exception: BaseException | None,
        site: str,
    ) -> Evidence:
        """Return what is known of a download that ended in *response*, *exception*, or unheard."""
        if response is None and exception is None:
            return Evidence(Outcome.AMBIGUOUS, site, why="failure unheard of")
        outcome = self._classify(request, response, exception)
        if outcome is _SUCCESS:
            return _success(site)
        if response is not None:
            neutral = outcome is Outcome.NEUTRAL
            rest = retry_after(response) if outcome.retry_elsewhere else None
            return Evidence(
                outcome,
                site,
                answered=neutral,
                login=is_login_fault(response),
                why=f"status {response.status}",
                rest=rest,
                turned_away=outcome is Outcome.BANNED,
            )
        assert exception is not None
        if is_descriptor_exhaustion(exception):
            self._descriptors_ran_out()
        return Evidence(outcome, site, login=is_login_fault(exception), why=describe(exception))

    def _classify(
        self, request: Request, response: Response | None, exception: BaseException | None
    ) -> Outcome:
        try:
            if response is not None:
                found = self.policy.classify_response(request, response)
            else:
                assert exception is not None
                found = self.policy.classify_exception(request, exception)
            return found if type(found) is Outcome else Outcome(found)
        except Exception:
            if self._stats is not None:
                self._stats.inc(names.POLICY_ERRORS)
            # In full once; a policy that fails does so on every response.
            logger.log(
                logging.DEBUG if self._policy_failed else logging.ERROR,
                "The outcome policy failed on %s, which is taken as neutral; it must return one "
                "of %s (counted as %s from now on)",
                request,
                ", ".join(f"Outcome.{outcome.name}" for outcome in Outcome),
                names.POLICY_ERRORS,
                exc_info=not self._policy_failed,
            )
            self._policy_failed = True
            return Outcome.NEUTRAL

    def _descriptors_ran_out(self) -> None:
        if not self._descriptors_told:
            self._descriptors_told = True
            logger.warning(
                "This process ran out of file descriptors, which is no proxy's fault: raise the "
                "limit (ulimit -n), or lower CONCURRENT_REQUESTS; idle connections to many "
                "proxies take one each"
            )
