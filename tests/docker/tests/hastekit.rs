//! The manager of HasteKit names real containers, and a client reaches the daemon there.

use ringfence_docker_tests::{IMAGE, Outcome, Server, docker_ok, engine};
use serde_json::{Value, json};

const SERVE: [&str; 6] = [
    "--backend",
    "docker",
    "--image",
    IMAGE,
    "--no-auth",
    "--hastekit",
];

/// Where the sandbox of this session is said to be.
async fn handle(server: &Server) -> Outcome<Value> {
    let body = json!({"session_id": "one"});
    let (status, answer) = server.post("/api/sandbox", &body).await?;
    assert_eq!(status, 200, "{answer}");
    Ok(answer["data"].clone())
}

/// The address that the engine has given the container of a handle.
fn address(handle: &Value) -> Outcome<String> {
    let name = handle["pod_name"].as_str().ok_or("no name")?;
    let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    docker_ok(&["inspect", "--format", format, name])
}

/// What a command prints that is run by the daemon of a handle.
async fn bash(server: &Server, handle: &Value, command: &str) -> Outcome<String> {
    let host = handle["pod_ip"].as_str().ok_or("no address")?;
    let url = format!("http://{host}:{}/exec/bash", handle["port"]);
    let asked = server.http.post(url).json(&json!({"command": command}));
    let done: Value = asked.send().await?.json().await?;
    let text = done["stdout"].as_str().ok_or("no output")?;
    Ok(text.trim_end().to_owned())
}

/// Tries sockets of two kinds.
const SOCKETS: &str = "python3 -c '
import socket
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM)
        print(family.name)
    except OSError as e:
        print(family.name, e.errno)
'";

#[tokio::test]
async fn a_client_reaches_the_daemon_at_the_address_of_its_container() -> Outcome {
    engine()?;
    let state = tempfile::tempdir()?;
    let direct = [
        &SERVE[..],
        &["--hastekit-pod-address", "--workspace-in", "disk"],
    ]
    .concat();
    let mut server = Server::start_on(state.path(), &direct, &[])?;
    let place = handle(&server).await?;
    assert_eq!(place["pod_ip"], address(&place)?);
    assert_eq!(place["port"], 8080);
    let begun = bash(&server, &place, "pwd; echo kept > file").await?;
    assert_eq!(begun, "/sandbox/workspace");
    // The daemon has a network, what it runs has none.
    assert_eq!(
        bash(&server, &place, SOCKETS).await?,
        "AF_UNIX\nAF_INET 97\nAF_INET6 97\nAF_NETLINK 97"
    );

    // No server is needed to reach it, and the next one says the same.
    server.kill()?;
    assert_eq!(bash(&server, &place, "cat file").await?, "kept");
    let server = Server::start_on(state.path(), &direct, &[])?;
    assert_eq!(handle(&server).await?, place);

    // Suspended, it is started by who asks for it, wherever it is then.
    let name = place["pod_name"].as_str().ok_or("no name")?;
    let (_, digits) = name.rsplit_once('-').ok_or("no name")?;
    let path = format!("/sessions/sbx_{digits}/suspend");
    assert_eq!(server.post(&path, &json!({})).await?.0, 204);
    assert!(bash(&server, &place, "true").await.is_err());
    let again = handle(&server).await?;
    assert_eq!(again["pod_ip"], address(&again)?);
    assert_eq!(bash(&server, &again, "cat file").await?, "kept");
    Ok(())
}

#[tokio::test]
async fn unless_it_is_asked_for_a_container_has_no_address() -> Outcome {
    engine()?;
    let state = tempfile::tempdir()?;
    let server = Server::start_on(state.path(), &SERVE, &[])?;
    let place = handle(&server).await?;
    assert_eq!(place["pod_ip"], "127.0.0.1");
    assert_eq!(address(&place)?, "");
    // The control: sockets can be made, and lead nowhere.
    assert_eq!(
        bash(&server, &place, SOCKETS).await?,
        "AF_UNIX\nAF_INET\nAF_INET6\nAF_NETLINK"
    );
    let devices = bash(&server, &place, "ls /sys/class/net").await?;
    assert_eq!(devices, "lo");
    // A client can't ask for it either.
    let asked = json!({"spec": {"container": {"daemon": true}}});
    let (status, refused) = server.post("/sessions", &asked).await?;
    assert_eq!(status, 403, "{refused}");
    Ok(())
}
