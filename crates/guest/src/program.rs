//! The program: settings from its arguments, then connections until it is told to end.

use crate::files::TRANSFERS;
use crate::spawn::{Turns, deny_sockets, nonblocking, set_turns, take_inherited, told_to_end};
use crate::stdio::{self, Stdio};
use crate::{Config, DaemonSettings, Guest, door};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::future::pending;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener as StdTcpListener};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream, UnixListener};

const USAGE: &str = "usage: ringfence-guest \
(--listen-fd N | --listen PATH | --tcp ADDR:PORT | --stdio | --daemon)... \
[--workspace DIR] [--oom-fd N] [--lifeline-fd N] [--memory-limit BYTES] [--open-files N] [--id ID] \
[--file-size BYTES] [--no-sockets] [--forget PREFIX] [--door NAME] [--end-with-stdio] \
[--secret-digest HEX [--door-port N] [--end-when-alone SECONDS]] [--kernel FILE]
       ringfence-guest relay NAME
       ringfence-guest install FILE MODE
       ringfence-guest compile PYTHON FILE";

/// Descriptors that this process may have open.
const OPEN_FILES: u64 = 8192;

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    listen_fd: Option<RawFd>,
    listen: Option<PathBuf>,
    tcp: Option<String>,
    stdio: bool,
    /// A second way in, for whoever knows the secret that standard input begins with.
    door: Option<String>,
    end_with_stdio: bool,
    /// The door's secret is known by this from the start; standard input is not needed for it.
    secret_digest: Option<door::Digest>,
    /// The door is at this port too.
    door_port: Option<u16>,
    /// It ends after so long without anybody inside.
    end_when_alone: Option<Duration>,
    /// Nothing that it starts gets a socket but unix ones.
    no_sockets: bool,
    /// Variables whose names begin so are not handed on.
    forget: Option<String>,
    /// The HasteKit daemon on TCP, as its environment says.
    daemon: bool,
    workspace: Option<PathBuf>,
    oom_fd: Option<RawFd>,
    lifeline_fd: Option<RawFd>,
    memory_limit: Option<u64>,
    open_files: Option<u64>,
    /// The kernel as an interpreter has compiled it.
    kernel: Option<PathBuf>,
    file_size: Option<u64>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--stdio" => {
                    parsed.stdio = true;
                    continue;
                }
                "--end-with-stdio" => {
                    parsed.end_with_stdio = true;
                    continue;
                }
                "--daemon" => {
                    parsed.daemon = true;
                    continue;
                }
                "--no-sockets" => {
                    parsed.no_sockets = true;
                    continue;
                }
                _ => {}
            }
            let value = words.next();
            let value = || value.clone().ok_or_else(|| format!("{word} needs a value"));
            let number = || {
                value()?
                    .parse::<RawFd>()
                    .ok()
                    .filter(|fd| *fd > 2)
                    .ok_or_else(|| format!("{word} needs the number of an open descriptor over 2"))
            };
            match word.as_str() {
                "--listen-fd" => parsed.listen_fd = Some(number()?),
                "--listen" => parsed.listen = Some(value()?.into()),
                "--tcp" => parsed.tcp = Some(value()?),
                "--door" => parsed.door = Some(value()?),
                "--forget" => parsed.forget = Some(value()?),
                "--secret-digest" => {
                    let digest = door::digest(&value()?);
                    let digest = digest.ok_or_else(|| format!("{word} needs 64 digits"))?;
                    parsed.secret_digest = Some(digest);
                }
                "--door-port" => {
                    let port = value()?.parse().ok().filter(|port| *port > 0);
                    parsed.door_port = Some(port.ok_or_else(|| format!("{word} needs a port"))?);
                }
                "--end-when-alone" => {
                    let seconds = value()?
                        .parse()
                        .map_err(|_| format!("{word} needs a number"))?;
                    parsed.end_when_alone = Some(Duration::from_secs(seconds));
                }
                "--file-size" => {
                    let bytes = value()?
                        .parse()
                        .map_err(|_| format!("{word} needs a number"))?;
                    parsed.file_size = Some(bytes);
                }
                "--workspace" => parsed.workspace = Some(value()?.into()),
                "--kernel" => parsed.kernel = Some(value()?.into()),
                "--oom-fd" => parsed.oom_fd = Some(number()?),
                "--lifeline-fd" => parsed.lifeline_fd = Some(number()?),
                // For those who look at the process from outside.
                "--id" => drop(value()?),
                "--open-files" => {
                    let files = value()?
                        .parse()
                        .map_err(|_| format!("{word} needs a number"))?;
                    parsed.open_files = Some(files);
                }
                "--memory-limit" => {
                    let bytes = value()?
                        .parse()
                        .map_err(|_| format!("{word} needs a number"))?;
                    parsed.memory_limit = Some(bytes);
                }
                _ => return Err(format!("no such option: {word}")),
            }
        }
        let ways = [
            parsed.listen_fd.is_some(),
            parsed.listen.is_some(),
            parsed.tcp.is_some(),
            parsed.stdio,
            parsed.daemon,
            parsed.secret_digest.is_some(),
        ];
        if !ways.contains(&true) {
            return Err("nothing to listen on".to_owned());
        }
        let known = parsed.secret_digest.is_some();
        if (parsed.door.is_some() && !known || parsed.end_with_stdio) && !parsed.stdio {
            return Err("--door and --end-with-stdio need --stdio".to_owned());
        }
        if known && (parsed.door.is_none() || parsed.stdio) {
            return Err("--secret-digest needs --door, and no --stdio".to_owned());
        }
        if (parsed.door_port.is_some() || parsed.end_when_alone.is_some()) && !known {
            return Err("--door-port and --end-when-alone need --secret-digest".to_owned());
        }
        Ok(parsed)
    }
}

/// The guest with these arguments and the environment of this process.
pub fn main(words: Vec<OsString>) -> ExitCode {
    let arguments = words.iter().map(|word| word.to_string_lossy().into_owned());
    let env = std::env::vars_os();
    let env = env.filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    let status = guest(arguments.collect(), env.collect());
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// Is the guest until it is told to end: with these arguments, and with this environment, which
/// everything it starts gets. Answers with its exit status.
pub fn guest(arguments: Vec<String>, env: Vec<(String, String)>) -> i32 {
    match run(arguments, env) {
        Ok(()) => 0,
        Err(message) => {
            complain(&message);
            1
        }
    }
}

/// Says why there will be no guest.
pub fn complain(message: &str) -> ExitCode {
    // Nothing to do when nobody listens.
    let _ = rustix::io::write(
        rustix::stdio::stderr(),
        format!("ringfence-guest: {message}\n").as_bytes(),
    );
    ExitCode::FAILURE
}

fn run(words: Vec<String>, mut env: Vec<(String, String)>) -> Result<(), String> {
    // Code of the same user must not read this process's memory or take its descriptors.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    crate::spawn::forget_fault_handlers();
    if let [verb, name] = words.as_slice()
        && verb == "relay"
    {
        let relay = door::relay(name);
        return runtime(1)?.block_on(relay).map_err(|e| e.to_string());
    }
    if let [verb, python, file] = words.as_slice()
        && verb == "compile"
    {
        return crate::repl::compile(python.as_ref(), file.as_ref()).map_err(|e| e.to_string());
    }
    if let [verb, to, mode] = words.as_slice()
        && verb == "install"
    {
        return install(to, mode).map_err(|e| format!("cannot install to {to}: {e}"));
    }
    let arguments = Arguments::parse(words.into_iter()).map_err(|e| format!("{e}\n{USAGE}"))?;

    // Orphans come to this process, also where it is not the init.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| format!("cannot become a subreaper: {e}"))?;

    // Of many sandboxes on one processor most need it for a moment only.
    set_turns(0, Turns::Short);

    // Each running command takes some descriptors here.
    let files = rustix::process::getrlimit(Resource::Nofile);
    let more = files.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if files.current.is_some_and(|current| current < more) {
        let _ = rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(more),
                maximum: files.maximum,
            },
        );
    }

    let known = [arguments.listen_fd, arguments.oom_fd, arguments.lifeline_fd];
    let known: BTreeSet<RawFd> = known.into_iter().flatten().collect();
    let mut inherited = take_inherited(&known);
    let mut take = |fd: Option<RawFd>| match fd {
        None => Ok(None),
        Some(fd) => match inherited.remove(&fd) {
            Some(fd) => Ok(Some(fd)),
            None => Err(format!("descriptor {fd} is not open")),
        },
    };
    let listener = take(arguments.listen_fd)?;
    let oom = take(arguments.oom_fd)?;
    let lifeline = take(arguments.lifeline_fd)?;

    if let Some(prefix) = &arguments.forget {
        env.retain(|(name, _)| !name.starts_with(prefix));
    }
    let daemon = match arguments.daemon {
        true => Some(DaemonSettings::read(&env)?),
        false => None,
    };
    if let Some(DaemonSettings { root, .. }) = &daemon {
        std::fs::create_dir_all(root)
            .map_err(|e| format!("cannot make {}: {e}", root.display()))?;
    }
    let ports = Ports {
        door: arguments.door_port.map(listen_everywhere).transpose()?,
        daemon: daemon
            .as_ref()
            .map(|daemon| listen_everywhere(daemon.port))
            .transpose()?,
    };
    if arguments.no_sockets {
        // What listens by now goes on to.
        deny_sockets().map_err(|e| format!("cannot deny sockets: {e}"))?;
    }
    let workspace = arguments.workspace.clone();
    let config = Config {
        workspace: workspace
            .or_else(|| daemon.as_ref().map(|daemon| daemon.root.clone()))
            .unwrap_or_else(|| ringfence_proto::WORKSPACE.into()),
        init: true,
        oom_events: oom.map(|fd| Arc::new(File::from(fd))),
        memory_limit: arguments.memory_limit,
        open_files: arguments.open_files,
        kernel: arguments.kernel.clone(),
        file_size: arguments.file_size,
        env,
    };
    // Clients can hold those of the archives for as long as they like; never the others.
    let runtime = runtime(4 + TRANSFERS)?;
    let guest = Guest::new(config);
    runtime.block_on(serve(arguments, guest, listener, lifeline, daemon, ports))
}

/// What was listened at before sockets were denied.
struct Ports {
    door: Option<StdTcpListener>,
    daemon: Option<StdTcpListener>,
}

/// Puts a copy of this program where another container finds it.
fn install(to: &str, mode: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = u32::from_str_radix(mode, 8).map_err(std::io::Error::other)?;
    let new = format!("{to}.new");
    std::fs::copy("/proc/self/exe", &new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&new, to)
}

fn runtime(blocking_threads: usize) -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .thread_keep_alive(Duration::from_secs(1))
        .thread_stack_size(256 << 10)
        .build()
        .map_err(|e| format!("cannot start the runtime: {e}"))
}

/// Serves every way in until the lifeline ends, a signal asks for the end, or the last way in
/// that can end has ended.
async fn serve(
    arguments: Arguments,
    guest: Arc<Guest>,
    listener: Option<OwnedFd>,
    lifeline: Option<OwnedFd>,
    daemon: Option<DaemonSettings>,
    ports: Ports,
) -> Result<(), String> {
    guest.start_reaper();
    // A native sandbox is ended by its lifeline or by SIGKILL. There an init without a handler
    // gets no SIGTERM of the code inside, and with one it would.
    let told = match arguments.listen_fd {
        Some(_) => None,
        None => Some(told_to_end().map_err(|e| format!("cannot handle SIGTERM: {e}"))?),
    };
    let listening = !arguments.end_with_stdio
        && (arguments.listen_fd.is_some()
            || arguments.listen.is_some()
            || arguments.tcp.is_some()
            || arguments.door.is_some()
            || arguments.daemon);

    if let Some(fd) = listener {
        let listener = std::os::unix::net::UnixListener::from(fd);
        listener
            .set_nonblocking(true)
            .map_err(|e| format!("cannot use --listen-fd: {e}"))?;
        let listener =
            UnixListener::from_std(listener).map_err(|e| format!("cannot use --listen-fd: {e}"))?;
        tokio::spawn(accept_unix(listener, Arc::clone(&guest)));
    }
    if let Some(path) = &arguments.listen {
        // One that was left behind by a guest before.
        if std::os::unix::net::UnixStream::connect(path).is_err() {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path)
            .map_err(|e| format!("cannot listen on {}: {e}", path.display()))?;
        tokio::spawn(accept_unix(listener, Arc::clone(&guest)));
    }
    if let Some(address) = &arguments.tcp {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| format!("cannot listen on {address}: {e}"))?;
        tokio::spawn(accept_tcp(listener, Arc::clone(&guest), Guest::serve));
    }
    let mut idle = None;
    if let Some((daemon, listener)) = daemon.zip(ports.daemon) {
        let listener =
            TcpListener::from_std(listener).map_err(|e| format!("cannot use the port: {e}"))?;
        tokio::spawn(accept_tcp(
            listener,
            Arc::clone(&guest),
            Guest::serve_daemon,
        ));
        idle = daemon.idle;
    }
    let unused = async {
        match idle {
            Some(limit) => guest.idle_for(limit).await,
            None => pending().await,
        }
    };
    let mut visitors = None;
    if let Some((digest, name)) = arguments.secret_digest.zip(arguments.door.as_deref()) {
        let door = door::Door::known(name, digest, ports.door)
            .map_err(|e| format!("cannot open the door {name}: {e}"))?;
        visitors = Some(door.visitors());
        tokio::spawn(door.serve(Arc::clone(&guest)));
    }
    let alone = async {
        match visitors.zip(arguments.end_when_alone) {
            Some((visitors, limit)) => door::alone(visitors, limit).await,
            None => pending().await,
        }
    };
    let stdio = async {
        if arguments.stdio {
            serve_stdio(Arc::clone(&guest), arguments.door.as_deref()).await?;
        }
        if !arguments.stdio || listening {
            pending::<()>().await;
        }
        Ok(())
    };
    let lifeline = async {
        match lifeline.map(nonblocking) {
            Some(Ok(fd)) => while spoken(&fd).await {},
            Some(Err(_)) => {}
            None => pending().await,
        }
    };
    let told = async {
        match told {
            Some(fd) => drop(spoken(&fd).await),
            None => pending().await,
        }
    };
    let ended = tokio::select! {
        ended = stdio => ended,
        () = lifeline => Ok(()),
        () = told => Ok(()),
        () = unused => Ok(()),
        () = alone => Ok(()),
    };
    // With an init the kernel ends all that is left, before any of it is told to have been killed.
    if !rustix::process::getpid().is_init() {
        guest.kill_everything().await;
    }
    ended
}

async fn accept_unix(listener: UnixListener, guest: Arc<Guest>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&guest).serve(stream))),
            // Out of descriptors or memory: others must end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// At every address of the sandbox, of both kinds where it has both.
fn listen_everywhere(port: u16) -> Result<StdTcpListener, String> {
    let both = StdTcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let listener = both.or_else(|_| StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    listener
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|e| format!("cannot listen on port {port}: {e}"))
}

async fn accept_tcp<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    guest: Arc<Guest>,
    serve: impl Fn(Arc<Guest>, TcpStream) -> F,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small and wait for nothing.
                let _ = stream.set_nodelay(true);
                drop(tokio::spawn(serve(Arc::clone(&guest), stream)));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Serves standard input and output; where there is a door, what comes first is its secret.
async fn serve_stdio(guest: Arc<Guest>, door: Option<&str>) -> Result<(), String> {
    match Stdio::new() {
        Ok(mut stdio) => {
            if let Some(name) = door {
                let door = door::Door::open(name, &mut stdio)
                    .await
                    .map_err(|e| format!("cannot open the door {name}: {e}"))?;
                tokio::spawn(door.serve(Arc::clone(&guest)));
                guest.greet(stdio).await;
            } else {
                guest.serve(stdio).await;
            }
        }
        Err(e) if door.is_some() => return Err(format!("cannot use standard input: {e}")),
        // Files and the like can't be waited for: threads read and write them.
        Err(_) => {
            guest
                .serve(tokio::io::join(tokio::io::stdin(), tokio::io::stdout()))
                .await
        }
    }
    Ok(())
}

/// Waits until something comes on a pipe; false when its other end is closed.
async fn spoken(fd: &AsyncFd<OwnedFd>) -> bool {
    let mut buffer = [0; 64];
    let read = fd.async_io(tokio::io::Interest::READABLE, |fd| {
        stdio::read(fd, &mut buffer)
    });
    read.await.is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(|w| (*w).to_owned()))
    }

    #[test]
    fn arguments_are_checked() {
        let parsed = parse(&["--listen-fd", "3", "--memory-limit", "1024"]).unwrap();
        assert_eq!(
            (parsed.listen_fd, parsed.memory_limit),
            (Some(3), Some(1024))
        );
        for bad in [
            &[][..],
            &["--listen-fd"],
            &["--listen-fd", "1"],
            &["--stdio", "--memory-limit", "x"],
            &["--stdio", "--what"],
            &["--listen", "/tmp/x", "--door", "x"],
            &["--listen", "/tmp/x", "--end-with-stdio"],
            &["--door", "x", "--secret-digest", "00"],
            &["--stdio", "--door-port", "80"],
            &["--stdio", "--end-when-alone", "1"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
