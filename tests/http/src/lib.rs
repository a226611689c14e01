//! A real server on a port of its own, for tests.

pub mod callback;
pub mod events;
pub mod mcp;

use serde_json::{Value, json};
use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The program under test, built before.
pub fn ringfence() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    // target/PROFILE/deps/TEST
    let profile = exe.parent().and_then(Path::parent).map(Path::to_owned);
    profile.unwrap_or_default().join("ringfence")
}

/// A server that is stopped, with all of its sandboxes, when dropped.
pub struct Server {
    child: Child,
    pub url: String,
    pub state: PathBuf,
    /// Removed with the server that made it.
    _folder: Option<tempfile::TempDir>,
    pub http: reqwest::Client,
    said: Arc<Mutex<Vec<String>>>,
}

/// Runs another verb on the state of a server, and gives what it prints.
pub fn verb(state: &Path, args: &[&str]) -> Outcome<String> {
    let done = Command::new(ringfence())
        .args(args)
        .arg("--state-dir")
        .arg(state)
        .output()?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
    }
    Ok(String::from_utf8(done.stdout)?.trim().to_owned())
}

/// Makes a key on the state of a server.
pub fn key(state: &Path, name: &str, more: &[&str]) -> Outcome<String> {
    verb(state, &[&["key", "add", name], more].concat())
}

/// A client that shows a key.
pub fn bearer(key: &str) -> Outcome<reqwest::Client> {
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert("authorization", format!("Bearer {key}").parse()?);
    Ok(reqwest::Client::builder()
        .default_headers(headers)
        .build()?)
}

/// Asks again until the answer is the one that is waited for.
pub async fn until<T>(mut ask: impl AsyncFnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let asked = async {
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    // Only so that a broken server is a failure and not a wait for ever.
    tokio::time::timeout(std::time::Duration::from_secs(60), asked).await?
}

impl Server {
    /// On a state of its own.
    pub fn start(args: &[&str]) -> Outcome<Self> {
        Self::start_in(args, &[])
    }

    /// On a state of its own, with more environment.
    pub fn start_in(args: &[&str], env: &[(&str, &str)]) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("rf-http-").tempdir()?;
        let state = folder.path().join("state");
        let mut server = Self::start_on(&state, args, env)?;
        server._folder = Some(folder);
        Ok(server)
    }

    /// On a state that is there, with more environment.
    pub fn start_on(state: &Path, args: &[&str], env: &[(&str, &str)]) -> Outcome<Self> {
        Self::start_with(state, &[&["--listen", "127.0.0.1:0"], args].concat(), env)
    }

    /// The same at whichever address the arguments or the environment say.
    pub fn start_with(state: &Path, args: &[&str], env: &[(&str, &str)]) -> Outcome<Self> {
        let mut command = Command::new(ringfence());
        command.args(["serve", "--state-dir"]).arg(state).args(args);
        Self::start_command(command.envs(env.iter().copied()), state)
    }

    /// With few descriptors.
    pub fn start_limited(state: &Path, descriptors: u32) -> Outcome<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh"])
            .arg(descriptors.to_string())
            .arg(ringfence())
            .args(["serve", "--listen", "127.0.0.1:0", "--state-dir"])
            .arg(state);
        Self::start_command(&mut command, state)
    }

    fn start_command(command: &mut Command, state: &Path) -> Outcome<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let mut said = String::new();
        let url = loop {
            let Some(line) = lines.next().transpose()? else {
                let _ = child.wait();
                return Err(format!("the server ended: {said}").into());
            };
            said.push_str(&line);
            said.push('\n');
            if let Some(rest) = line.split("listening on ").nth(1) {
                break rest.split(' ').next().unwrap_or_default().to_owned();
            }
        };
        let log = Arc::new(Mutex::new(Vec::new()));
        // What it says later is for whoever looks at a failed test, or at the log.
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line.clone());
                let _ = std::io::Write::write_all(
                    &mut std::io::stderr(),
                    format!("server: {line}\n").as_bytes(),
                );
            }
        });
        Ok(Self {
            child,
            url,
            state: state.to_owned(),
            _folder: None,
            http: reqwest::Client::new(),
            said: log,
        })
    }

    /// With a key for everything, which its client shows.
    pub fn start_with_key(args: &[&str]) -> Outcome<(Self, String)> {
        let folder = tempfile::Builder::new().prefix("rf-http-").tempdir()?;
        let state = folder.path().join("state");
        let key = key(&state, "admin", &["--scope", "admin"])?;
        let mut server = Self::start_on(&state, args, &[])?;
        server._folder = Some(folder);
        server.http = bearer(&key)?;
        Ok((server, key))
    }

    /// The lines of its log so far.
    pub fn log(&self) -> Vec<String> {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A line of the log that fits, once it is there.
    pub async fn log_line(&self, fits: impl Fn(&str) -> bool) -> Outcome<String> {
        until(async || Ok(self.log().into_iter().find(|line| fits(line)))).await
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap_or(&self.url)
    }

    /// The same server for a caller with another key.
    pub async fn as_key(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(u16, Value)> {
        self.ask_by(&bearer(key)?, method, path, body).await
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits for that.
    pub fn stop(&mut self) -> Outcome<std::process::ExitStatus> {
        self.signal(rustix::process::Signal::TERM);
        Ok(self.child.wait()?)
    }

    /// `kill -9`; its sandboxes live on.
    pub fn kill(&mut self) -> Outcome {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Status and JSON body (null where there is none) of a request.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(u16, Value)> {
        self.ask_by(&self.http, method, path, body).await
    }

    async fn ask_by(
        &self,
        http: &reqwest::Client,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(u16, Value)> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        let mut request = http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await?;
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((status, value))
    }

    pub async fn get(&self, path: &str) -> Outcome<(u16, Value)> {
        self.ask("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Outcome<(u16, Value)> {
        self.ask("POST", path, Some(body)).await
    }

    /// Makes a session and gives its id.
    pub async fn session(&self) -> Outcome<String> {
        self.session_with(&json!({})).await
    }

    pub async fn session_with(&self, body: &Value) -> Outcome<String> {
        let (status, answer) = self.post("/sessions", body).await?;
        match answer["session_id"].as_str() {
            Some(id) if status == 201 || status == 200 => Ok(id.to_owned()),
            _ => Err(format!("no session: {status} {answer}").into()),
        }
    }

    /// The content of the result block of a `code_execution`.
    pub async fn code(&self, session: &str, code: &str) -> Outcome<Value> {
        let input = json!({"code": code});
        self.tool(session, "code_execution", &input).await
    }

    pub async fn bash(&self, session: &str, command: &str) -> Outcome<Value> {
        let input = json!({"command": command});
        self.tool(session, "bash_code_execution", &input).await
    }

    pub async fn tool(&self, session: &str, tool: &str, input: &Value) -> Outcome<Value> {
        let body = json!({"tool": tool, "input": input});
        let (status, answer) = self
            .post(&format!("/sessions/{session}/exec"), &body)
            .await?;
        if status != 200 {
            return Err(format!("exec: {status} {answer}").into());
        }
        Ok(answer["result_block"]["content"].clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.stop();
        }
    }
}

/// An interpreter that has what `tests/requirements.txt` names; `./test` makes one.
pub fn python() -> Outcome<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "tests have no settings")]
    let given = std::env::var_os("RINGFENCE_TEST_PYTHON").map(PathBuf::from);
    let made = ringfence()
        .parent()
        .and_then(Path::parent)
        .map(|t| t.join("venv/bin/python3"));
    let python = given.or(made).unwrap_or_default();
    if !python.exists() {
        let python = python.display();
        return Err(
            format!("there is no {python}: ./test makes it, or set RINGFENCE_TEST_PYTHON").into(),
        );
    }
    Ok(python)
}
