"""Submits a map under throttle through autothrottle's admin service."""

from __future__ import annotations

import sys
from functools import partial

from autothrottle.core.placement.partition_map import PartitionMap
from autothrottle.core.records import Allowances
from autothrottle.core.texts import escape_unprintable
from autothrottle.topicmappr.options import OutputOptions
from autothrottle_client.admin import AdminClient
from autothrottle_client.contexts import read_token_file
from autothrottle_client.texts import estimate_line
from autothrottle_client.tls import Tls

DEFAULT_ADMIN_ADDRESS = "127.0.0.1:8090"


def submit(options: OutputOptions, changed: PartitionMap) -> int:
    """Print an estimate, then submit partitions, or only validate them; return the exit status.

    With --json, the standard output is the document of the plan, so these lines go to the standard error.

    Raises:
        Invalid: the service refuses them.
    """
    show = partial(print, file=sys.stderr if options.json else sys.stdout)
    if not changed:
        show("No partition changes; nothing to submit")
        return 0
    targets = {partition.key: partition.replicas for partition in changed}
    allowances = _allowances(options)
    tls = Tls(options.tls_cert, options.tls_key, options.tls_ca) if options.tls_cert else None
    addresses = options.admin_addr or (DEFAULT_ADMIN_ADDRESS,)
    on_silence = partial(print, file=sys.stderr, flush=True)
    token = read_token_file(options.token_file) if options.token_file else ""
    with AdminClient(addresses, tls=tls, token=token, on_silence=on_silence) as admin:
        show(f"Estimate: {estimate_line(admin.estimate_reassignment(targets, allowances=allowances))}")
        submission = admin.submit_reassignment(targets, validate_only=options.dry_run, allowances=allowances)
    for left_out in submission.left_out:
        show(f"Left out: {escape_unprintable(left_out.reason)}")
    for warning in submission.warnings:
        show(f"Warning: {escape_unprintable(warning)}")
    verb = "would be submitted" if options.dry_run else "submitted under throttle"
    show(f"{submission.submitted} partitions {verb}, {submission.already_in_progress} already move there")
    for (topic, partition), reason in submission.refused.items():
        show(escape_unprintable(f"Kafka refused {topic} p{partition}: {reason}"))
    return 1 if submission.refused else 0


def _allowances(options: OutputOptions) -> Allowances:
    """Return what the options allow. What a command itself asks for needs no second option."""
    return Allowances(
        allow_fewer_replicas=options.allow_fewer_replicas or bool(getattr(options, "replication", 0)),
        allow_fewer_racks=bool(getattr(options, "allow_fewer_racks", False) or getattr(options, "min_rack_ids", 0)),
        allow_cordoned=options.allow_cordoned,
        allow_full=options.allow_full,
        skip_refused=options.skip_refused,
    )
