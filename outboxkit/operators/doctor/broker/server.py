"""Server of the broker: alarms, nodes, clock, and what could not be asked. Pure."""

from collections.abc import Iterator

from outboxkit.codec.codec import MAX_PAYLOAD_BYTES
from outboxkit.errors.wording import shell_word
from outboxkit.operators.doctor.broker.look import Look
from outboxkit.operators.doctor.broker.subject import TableFacts
from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.findings import Diagnosis

FILES_OF_A_QUEUE = 3
"""File descriptors that RabbitMQ 3 reserves for a quorum queue, whether it opens them or not."""
FILES_SHARE = 0.8
"""The share of a node's file descriptors in use from which on doctor warns."""
UNSEEN = (
    "bindings, types that no queue wants, policies, limits of queues, rights, alarms, nodes of the cluster, the clock"
)
"""The things that only the management API tells."""


def of_alarms(look: Look) -> Iterator[Diagnosis]:
    """Whether the broker takes no messages because memory or disk are short."""
    alarms = look.reports.alarms if look.reports is not None else None
    if alarms:
        yield problem(
            "broker-alarm",
            f"The broker has an alarm: {', '.join(alarms)}.",
            why="It reads from no connection that publishes. Relays wait, and so do retries of consumers.",
            cure="Free disk or memory: let consumers empty their queues, or give the broker more.",
            commands=("rabbitmq-diagnostics alarms", "rabbitmqctl list_queues name messages memory"),
        )


def of_nodes(look: Look) -> Iterator[Diagnosis]:
    """Whether all nodes of the cluster run, and see each other."""
    nodes = (look.reports.nodes if look.reports is not None else None) or ()
    down = [node.name for node in nodes if not node.running]
    apart = [node.name for node in nodes if node.partitions]
    if down:
        yield (problem if 2 * len(down) >= len(nodes) else warning)(
            "node-down",
            f"Of {len(nodes)} nodes of the cluster, {', '.join(down)} {'does' if len(down) == 1 else 'do'} not run.",
            why="Quorum queues need a majority of their members to take and give messages.",
            cure="Start them. A node that is gone for good has to be taken out of the cluster.",
            commands=("rabbitmqctl cluster_status", *(f"rabbitmqctl forget_cluster_node {name}" for name in down)),
        )
    if apart:
        yield problem(
            "network-partition",
            f"The nodes {', '.join(apart)} have lost sight of others and not joined them again.",
            why="Each part has exchanges, bindings and classic queues of its own, which drift apart.",
            cure="Choose the part to keep, and start the nodes of the other one again.",
            commands=("rabbitmqctl cluster_status",),
        )


def of_files(look: Look) -> Iterator[Diagnosis]:
    """Whether a node runs out of file descriptors. RabbitMQ 3 reserves some for each quorum queue, and opens few."""
    if look.reports is None:
        return
    reserved = FILES_OF_A_QUEUE * look.reports.all_queues if look.version < (4,) else 0
    for node in look.reports.nodes or ():
        used = max(node.fd_used, reserved + node.sockets_used)
        if node.fd_total and used >= FILES_SHARE * node.fd_total:
            yield warning(
                "broker-files",
                f"Node {node.name} has some {used} of {node.fd_total} file descriptors open or reserved.",
                why="Without a free one it accepts no connection, and raises no alarm. A connection takes one, and in "
                f"RabbitMQ 3 a quorum queue takes {FILES_OF_A_QUEUE}.",
                cure="Raise the limit of open files of the broker's process, and delete what nobody uses.",
                commands=("rabbitmqctl list_queues name consumers messages", "rabbitmqctl list_connections name user"),
            )


def of_clock(look: Look) -> Iterator[Diagnosis]:
    """Whether the clocks of broker and this machine agree."""
    ahead = look.reports.ahead if look.reports is not None else None
    if ahead is not None and abs(ahead) > look.skew.total_seconds():
        yield warning(
            "broker-clock",
            f"The broker's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's.",
            why="The times of logs do not fit together. If it is this machine's clock that is wrong, new messages may "
            "be taken for stale ones.",
            cure="Have both machines keep their clocks by NTP.",
            commands=("timedatectl",),
        )


def of_sizes(facts: TableFacts) -> Iterator[Diagnosis]:
    """Whether the broker takes the largest message that outboxkit accepts."""
    if facts.refused_size:
        yield problem(
            "message-too-large",
            f"The broker refuses messages for their size: {facts.refused_size}.",
            why=f"outbox.add accepts payloads up to {MAX_PAYLOAD_BYTES} bytes, or up to max_payload_bytes. What the "
            "broker refuses becomes a dead letter.",
            cure="Raise max_message_size in rabbitmq.conf, in bytes, and replay. Or send a reference to the content.",
            commands=("outboxkit dead list", "rabbitmqctl eval 'application:get_env(rabbit, max_message_size).'"),
        )


def of_management(look: Look) -> Iterator[Diagnosis]:
    """The things that could not be checked, because the management API cannot be read.

    It is a warning if the API was named. A broker without the plugin works as well: then it is a note.
    """
    user, vhost = shell_word(look.subject.user[0]), shell_word(look.subject.vhost)
    if look.reports is None:
        yield (note if look.subject.management is None else warning)(
            "management-unread",
            f"{look.silence[:1].upper()}{look.silence[1:]}. AMQP does not tell, so these were not checked: {UNSEEN}.",
            why="These are the broker's ways to hold or drop messages in silence.",
            cure="Enable the plugin and let a user read it; name it in OUTBOXKIT_MANAGEMENT_URL if it is elsewhere: "
            "http://user:password@host:15672.",
            commands=(
                "rabbitmq-plugins enable rabbitmq_management",
                f"rabbitmqctl set_user_tags {user} monitoring",
            ),
        )
        return
    reports = look.reports
    seen = {"alarms": reports.alarms, "nodes": reports.nodes, "bindings": reports.bindings, "rights": reports.rights}
    unseen = [name for name, report in seen.items() if report is None]
    if unseen:
        yield (note if unseen == ["rights"] else warning)(
            "management-limited",
            f"Not checked, because the user of the management API at {look.api} may not see it: {', '.join(unseen)}.",
            why="Nodes need the tag monitoring, bindings a right in the virtual host, and rights an administrator.",
            cure="Name a user that may see them in OUTBOXKIT_MANAGEMENT_URL.",
            commands=(
                "rabbitmqctl add_user doctor",
                "rabbitmqctl set_user_tags doctor administrator",
                f"rabbitmqctl set_permissions -p {vhost} doctor '^$' '^$' '.*'",
            ),
        )
