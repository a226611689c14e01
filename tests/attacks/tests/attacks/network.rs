//! Everything that listens on the host or near it.

use ringfence_tests::{Host, Place, attacks, script, unique};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

const CONNECT: &str = r#"
def connect():
    s = socket.socket()
    s.settimeout(5)
    s.connect((ARGS[0], int(ARGS[1])))
judge(connect)
"#;

const CONNECT_UNIX: &str = r#"
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(ARGS[0].replace("@", "\0"))
judge(connect)
"#;

/// What keeps code from a network: there is none, or in a pod, no socket for it.
fn without(host: &Host, error: &'static str) -> [&'static str; 1] {
    match host.place {
        Place::Kubernetes => ["EAFNOSUPPORT"],
        _ => [error],
    }
}

attacks! {
    fn loopback_of_the_host(host) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        host.outside(CONNECT, &["127.0.0.1", &port]).reached();
        host.inside(&[], CONNECT, &["127.0.0.1", &port])
            .denied(&without(&host, "ECONNREFUSED"));
    }

    /// Where clouds hand out credentials. Nothing is sent: the control gives the address to the
    /// loopback of a network of its own.
    fn metadata_address(host) {
        let around = r#"
import socket, subprocess, sys
for line in (["link", "set", "lo", "up"], ["addr", "add", "169.254.169.254/32", "dev", "lo"]):
    subprocess.run(["ip", *line], check=True)
s = socket.socket()
s.bind(("169.254.169.254", 80))
s.listen()
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"#;
        let starter = ["unshare", "-n", "/usr/bin/python3", "-c", around];
        host.outside_by(&starter, CONNECT, &["169.254.169.254", "80"]).reached();
        host.inside(&[], CONNECT, &["169.254.169.254", "80"])
            .denied(&without(&host, "ENETUNREACH"));
    }

    fn abstract_socket(host) {
        let name = unique();
        let _listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let address = format!("@{name}");
        host.outside(CONNECT_UNIX, &[&address]).reached();
        host.inside(&[], CONNECT_UNIX, &[&address]).denied(&["ECONNREFUSED"]);
    }

    fn named_socket(host) {
        let path = host.path("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        host.outside(CONNECT_UNIX, &[path]).reached();
        host.inside(&[], CONNECT_UNIX, &[path]).denied(&["ENOENT"]);
    }

    /// The guest's own socket, from inside, while it listens.
    fn socket_of_the_guest(host) native_only "a container's guest has no socket outside" {
        let ask = "ARGS.append(input())\n".to_owned() + CONNECT_UNIX + "input()\n";
        let mut command = host.sandbox(&[], &script(&ask), &[]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut sandbox = ringfence_tests::Running::start(&mut command);
        let socket = || {
            let id = host.sandboxes().into_iter().next()?;
            Some(host.path("state").join(id).join("guest.sock")).filter(|p| p.exists())
        };
        ringfence_tests::wait_until("the sandbox", || socket().is_some());
        let socket = socket().unwrap();
        let socket = socket.to_str().unwrap();
        host.outside(CONNECT_UNIX, &[socket]).reached();
        sandbox.say(socket);
        use std::io::BufRead as _;
        let mut line = String::new();
        let output = sandbox.0.stdout.take().unwrap();
        std::io::BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("VERDICT DENIED ENOENT"), "{line}");
    }
}
