//! A server of its own, a connection to it, and what is said about samples.

use serde_json::Value;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A server of its own, ended with all of its sessions.
pub(crate) struct Server {
    pub(crate) child: Child,
    address: String,
}

impl Server {
    #[allow(dead_code, reason = "each program uses a part")]
    pub(crate) fn start(state: &Path, sessions: usize) -> Result<Self> {
        Self::start_with(state, sessions, &["--python", PYTHON], &[])
    }

    pub(crate) fn start_with(
        state: &Path,
        sessions: usize,
        args: &[&str],
        env: &[(&str, &Path)],
    ) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("ringfence");
        if !program.is_file() {
            return Err(format!("build it first: {} is missing", program.display()).into());
        }
        let most = sessions.to_string();
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--log-level", "error"])
            .args(args)
            .envs(env.iter().copied())
            .args(["--max-sessions", &most, "--state-dir"])
            .arg(state)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let address = loop {
            let line = lines.next().ok_or("the server ended")??;
            if let Some(rest) = line.split("listening on http://").nth(1) {
                break rest.split(' ').next().unwrap_or_default().to_owned();
            }
        };
        std::thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                let _ = writeln!(anstream::stderr(), "{line}");
            }
        });
        Ok(Self { child, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        let _ = self.child.wait();
    }
}

/// A connection that is kept alive.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(server: &Server) -> Result<Self> {
        let stream = TcpStream::connect(&server.address)?;
        stream.set_nodelay(true)?;
        let stream = BufReader::new(stream);
        Ok(Self { stream })
    }

    /// Asks, and does not wait for the answer.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        Ok(self.stream.get_mut().write_all(head.as_bytes())?)
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
        self.send(method, path, body)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).ok_or("no status")?.parse()?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or("a bad header")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}

pub(crate) fn quantile(samples: &[Duration], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort();
    let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, Duration::as_secs_f64) * 1000.0
}
