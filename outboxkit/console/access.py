"""Who may use the console, and for what: a callable from a request to an `Access`, and four ready-made ones."""

import hmac
import ipaddress
import secrets
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from starlette.requests import Request

from outboxkit.errors import ConfigurationError

ConsoleRight = Literal["read", "payload", "operate"]
ConsoleRights = Iterable[ConsoleRight]
RIGHTS: tuple[ConsoleRight, ...] = get_args(ConsoleRight)
READ: frozenset[ConsoleRight] = frozenset({"read"})
SHORTEST = 12
"""The fewest characters of a token or a password."""
FAILURES, WITHIN_SECONDS, MOST_CLIENTS = 10, 60.0, 10_000
OF_ADDRESS = 50
"""Failures of all users of one address: an office may be behind it, or a proxy."""


@dataclass(frozen=True)
class Access:
    """A user, and what the user may do.

    Attributes:
        user: the name in the audit trail.
        may: any of `read`, `payload`, which shows what is in messages, and `operate`, which changes something.

    Raises:
        ConfigurationError: there is no name, or no such right.
    """

    user: str
    may: ConsoleRights = READ

    def __post_init__(self) -> None:
        rights = frozenset({self.may} if isinstance(self.may, str) else self.may)
        if unknown := sorted(rights - set(RIGHTS)):
            raise ConfigurationError(f"may has {', '.join(map(repr, unknown))}: {', '.join(RIGHTS)} are accepted")
        if not self.user:
            raise ConfigurationError("the user of an Access is empty: a name is needed, for the audit trail")
        object.__setattr__(self, "may", rights)


Granting = Callable[[Request], Access | Awaitable[Access | None] | None]
"""What `console(access=...)` takes; None refuses the request."""


class TooManyFailures(Exception):
    """A client has failed to log in too often; its next attempts are not looked at for a while."""


class Failures:
    """Counts the failed log-ins of each client in the last minute; after `most` of them it has to wait."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, *, most: int = FAILURES) -> None:
        self._monotonic, self._most = monotonic, most
        self._of: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Raise `TooManyFailures` for a client that has failed too often."""
        since = self._monotonic() - WITHIN_SECONDS
        recent = [at for at in self._of.pop(client, []) if at > since]
        if recent:
            self._of[client] = recent
        if len(recent) >= self._most:
            raise TooManyFailures

    def add(self, client: str) -> None:
        """Note a failure."""
        self._of.setdefault(client, []).append(self._monotonic())
        if len(self._of) > MOST_CLIENTS:
            self._of.popitem(last=False)


class TokenAccess:
    """Lets everybody in who knows a token. A browser types it once, and has a session then.

    Args:
        token: at least 12 characters, such as `secrets.token_urlsafe(32)` makes.
        user: the name in the audit trail.
        may: the rights.

    Raises:
        ConfigurationError: the token is too short, or there is no such right.
    """

    has_form = True

    def __init__(self, token: str, *, user: str = "console", may: ConsoleRights = READ) -> None:
        refuse_short("the token", token)
        self.key = token
        """From which the sessions' signatures are made: another token ends all sessions."""
        self._token, self._access, self._failures = token, Access(user, may), Failures()
        self.operates = "operate" in self._access.may
        """Whether its user may change something."""

    def sign_in(self, request: Request, token: str) -> Access | None:
        """The access of this token, if it is the right one and the client has not tried too many."""
        client = _client(request)
        self._failures.check(client)
        if _is_same(token, self._token):
            return self._access
        self._failures.add(client)
        return None

    def of_session(self, user: str) -> Access | None:
        """The access of somebody who has logged in."""
        return self._access if user == self._access.user else None

    def __call__(self, request: Request) -> Access | None:  # noqa: ARG002 - sessions let users in
        """None: a user comes in by a session alone."""
        return None


class LinkAccess(TokenAccess):
    """Lets the one in who opens a link first. `outboxkit console` prints it.

    Attributes:
        token: the part of the link that nobody can guess.
    """

    has_form = False

    def __init__(self, *, user: str, may: ConsoleRights = READ) -> None:
        self.token = secrets.token_urlsafe(32)
        super().__init__(self.token, user=user, may=may)

    def sign_in(self, request: Request, token: str) -> Access | None:  # noqa: ARG002 - as a token's
        """The access of the link, which nobody gets again.

        Attempts have no limit: nobody guesses 256 bits, and a limit would let any page in the user's browser use it up.
        """
        if not _is_same(token, self._token):
            return None
        self._token = secrets.token_urlsafe(32)
        return self._access


class BasicAccess:
    """Lets users in by HTTP basic authentication. Use it behind TLS alone.

    Args:
        users: their passwords, of at least 12 characters, by their names.
        may: the rights of all, or those of each by name; who is not named there may read.

    Raises:
        ConfigurationError: a password is too short, or there is no such right.
    """

    challenge = 'Basic realm="outboxkit console", charset="UTF-8"'

    def __init__(self, users: Mapping[str, str], *, may: ConsoleRights | Mapping[str, ConsoleRights] = READ) -> None:
        for user, password in users.items():
            refuse_short(f"the password of {user!r}", password)
        self._passwords, self._failures = dict(users), Failures()
        self._of_address = Failures(most=OF_ADDRESS)
        self._access = {user: Access(user, _rights(may, user)) for user in users}

    def __call__(self, request: Request) -> Access | None:
        """The access of the request's user, unless that address has tried too many passwords of one user or of all."""
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        client = _client(request)
        attempt = f"{client} {user[:255]}"
        self._failures.check(attempt)
        self._of_address.check(client)
        if _is_same(password, self._passwords.get(user, secrets.token_urlsafe())):
            return self._access.get(user)
        self._failures.add(attempt)
        self._of_address.add(client)
        return None


class ProxyAccess:
    """Lets users in whom a proxy has authenticated, by the header in which the proxy names them.

    The server must tell the proxy's own address: run uvicorn with `--no-proxy-headers`. A request whose address was
    taken from `X-Forwarded-For` is refused, since a client may write what it likes there. With or without a port and
    brackets, that header must not hold the proxy's own address.

    Args:
        proxies: the proxy's addresses, or networks such as `10.0.0.0/28`.
        header: the header. The proxy must replace it if a client sends it.
        may: the rights of all, or those of each by name; who is not named there may read.

    Raises:
        ConfigurationError: no address is given, or one is not an address, or there is no such right.
    """

    def __init__(
        self, *proxies: str, header: str = "X-Forwarded-User", may: ConsoleRights | Mapping[str, ConsoleRights] = READ
    ) -> None:
        try:
            self._networks = [ipaddress.ip_network(each) for each in proxies]
        except ValueError as error:
            raise ConfigurationError(f"a proxy's address or network is accepted, such as 10.0.0.7: {error}") from None
        if not proxies:
            raise ConfigurationError("the address of the proxy is not given: anybody could send the header")
        self._header, self._may = header, may
        for user in may if isinstance(may, Mapping) else ("anybody",):
            Access(user, _rights(may, user))

    def __call__(self, request: Request) -> Access | None:
        """The access of the user whom the proxy names."""
        users = request.headers.getlist(self._header)
        try:
            address = ipaddress.ip_address(_client(request))
        except ValueError:
            return None
        lines = request.headers.getlist("x-forwarded-for")
        claimed = {_address(each) for line in lines for each in line.split(",")}
        is_proxy = address not in claimed and any(address in network for network in self._networks)
        if not is_proxy or len(users) != 1 or not (user := users[0].strip()):
            return None
        return Access(user[:255], _rights(self._may, user))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in a text, with or without quotes, brackets and a port; None if it is not an address."""
    text = text.strip().strip('"')
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    host = bare.partition(":")[0] if bare.count(":") == 1 else bare
    try:
        return ipaddress.ip_address(host.strip())
    except ValueError:
        return None


def _rights(may: ConsoleRights | Mapping[str, ConsoleRights], user: str) -> ConsoleRights:
    return may.get(user, READ) if isinstance(may, Mapping) else may


def refuse_short(what: str, secret: str) -> None:
    """Refuse a secret that can be guessed."""
    if len(secret) < SHORTEST:
        raise ConfigurationError(f"{what} has {len(secret)} characters: {SHORTEST} or more are accepted")


def refuse_text(option: str, names: object) -> None:
    """Refuse a text in the place of a list of texts: its letters would be the names."""
    if isinstance(names, str):
        raise ConfigurationError(f"{option} is the text {names!r}: a list is accepted, such as {option}=[{names!r}]")


def _is_same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), right.encode())


def _client(request: Request) -> str:
    return request.client.host if request.client else ""
