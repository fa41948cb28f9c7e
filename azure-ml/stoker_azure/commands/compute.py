"""`stoker compute`: which compute targets of Azure's SDK stand for a cluster."""

from __future__ import annotations

import argparse
import sys

from stoker.commands.terminal import add_workspace_argument, sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    from stoker.settings.loading import add_setting_options
    from stoker_cluster.plan import ClusterPlan

    actions = parser.add_subparsers(dest="compute_action", required=True, metavar="ACTION")
    text = "deploy services of a compute target to a cluster"
    binding = actions.add_parser("bind", help=text, description=sentence(f"{text} from now on"))
    binding.add_argument("target", metavar="NAME", help="the compute target; it need not be there yet")
    binding.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current one)"
    )
    binding.set_defaults(compute_run=_bind)
    add_setting_options(binding.add_argument_group("plan", "of each of its services"), ClusterPlan)
    text = "deploy services of a compute target to this machine again"
    releasing = actions.add_parser("unbind", help=text, description=sentence(text))
    releasing.add_argument("target", metavar="NAME", help="the compute target")
    releasing.set_defaults(compute_run=_unbind)
    text = "list the compute targets that stand for a cluster"
    listing = actions.add_parser("list", help=text, description=sentence(text))
    listing.set_defaults(compute_run=_list)
    for action in (binding, releasing, listing):
        add_workspace_argument(action)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        InvalidSettings: A value is bad.
        ClusterError: There is no such context.
    """
    exit_code: int = args.compute_run(args)
    return exit_code


def _bind(args: argparse.Namespace) -> int:
    from stoker.settings.readers import settings_of
    from stoker.settings.workspace import Workspace
    from stoker_azure.sdk.bindings import Binding, bind
    from stoker_cluster.access import Cluster
    from stoker_cluster.plan import ClusterPlan

    cluster = Cluster.connect(args.context)
    given = vars(args)
    fields = {name: given[name] for name in settings_of(ClusterPlan) if name in given}
    namespace = fields.pop("namespace", cluster.namespace)
    binding = Binding(context=cluster.context, namespace=namespace, fields=fields)
    bind(Workspace.find(args.workspace), args.target, binding)
    sys.stdout.write(f"{args.target} stands for namespace {namespace} of {cluster.context}\n")
    return 0


def _unbind(args: argparse.Namespace) -> int:
    from stoker.settings.workspace import Workspace
    from stoker_azure.sdk.bindings import unbind

    was_bound = unbind(Workspace.find(args.workspace), args.target)
    sys.stdout.write(f"{args.target} {'stands for this machine' if was_bound else 'was not bound'}\n")
    return 0


def _list(args: argparse.Namespace) -> int:
    from stoker.settings.workspace import Workspace
    from stoker_azure.sdk.bindings import bindings

    found = bindings(Workspace.find(args.workspace))
    if not found:
        sys.stderr.write("no compute target stands for a cluster; see: stoker compute bind --help\n")
    for name, binding in found.items():
        image = binding.fields["image"]
        sys.stdout.write(f"{name}  {binding.context}  {binding.namespace}  {image}\n")
    return 0
