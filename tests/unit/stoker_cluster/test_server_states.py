"""Commands of a router to HAProxy."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker_cluster.endpoints import Server
from stoker_cluster.haproxy_servers import commands, requests_in, states_in

SHOWN = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight
5 servers 1 hold 127.0.0.1 2 0 1
5 servers 2 10.0.0.1:8080 10.0.0.1 2 0 1
5 servers 3 10.0.0.2:8080 10.0.0.2 2 8 1
6 version-a 1 ::1:8080 ::1 0 1 1"""
SERVERS = st.builds(Server, st.sampled_from(["10.0.0.1", "10.0.0.2", "::1"]), st.just(8080), st.booleans())


def test_states_are_read_from_haproxys_table() -> None:
    """They are by backend and name, without the server that holds requests."""
    assert states_in(SHOWN) == {
        ("servers", "10.0.0.1:8080"): "ready",
        ("servers", "10.0.0.2:8080"): "drain",
        ("version-a", "::1:8080"): "",
    }


def test_requests_are_counted_of_all_backends() -> None:
    """The number is found among any other columns."""
    shown = (
        "# pxname,svname,qcur,scur,\nversion-a,BACKEND,1,3,\nversion-b,BACKEND,0,4,\nsequence,BACKEND,0,0,"
    )
    assert requests_in(shown) == 7
    assert requests_in("# pxname,svname,qcur,scur,\nservers,BACKEND,0,0,\n\n") == 0


@given(
    st.frozensets(SERVERS),
    st.dictionaries(SERVERS.map(lambda s: s.name), st.sampled_from(["ready", "drain", ""])),
)
@settings(max_examples=50)
def test_commands_lead_to_the_present_servers(servers: frozenset[Server], before: dict[str, str]) -> None:
    """Afterwards HAProxy has each ready server, drains terminating ones, and has no other."""
    states = {("servers", name): state for name, state in before.items()}
    after = dict(before)
    for command in commands(states, {"": servers}, 3):
        words = command.split()
        name = words[2].removeprefix("servers/")
        match words[:2]:
            case ["add", "server"]:
                assert name not in after
                assert (words[3], words[-2:]) == (name, ["maxconn", "3"])
                after[name] = ""
            case ["set", "server"]:
                after[name] = words[4]
            case ["del", "server"]:
                assert after.pop(name) == "maint"
    ready = {server.name for server in servers if server.ready}
    going = {server.name for server in servers} - ready
    assert after == dict.fromkeys(ready, "ready") | dict.fromkeys(going & set(before), "drain")


def test_unchanged_servers_need_no_command() -> None:
    """A second look at the same servers gives no command."""
    states = {("version-a", "h:1"): "ready", ("version-b", "h:2"): "drain"}
    wanted = {"a": frozenset({Server("h", 1)}), "b": frozenset({Server("h", 2, ready=False)})}
    assert list(commands(states, wanted, 0)) == []
