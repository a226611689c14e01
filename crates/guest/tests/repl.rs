//! The persistent Python: values, output, errors, interrupts, and every way to die.
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]
mod support;

use http::Method;
use ringfence_proto::{
    Cause, Code, Ended, Event, ExecResult, Exit, Failure, Health, KernelInfo, Rich,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use support::{Client, Events, Guest, PATIENCE, full, marker, until, with_argument};

async fn try_run(client: &Client, name: &str, request: Value) -> Result<ExecResult, Failure> {
    let bytes = client
        .try_post(&format!("/kernels/{name}/run"), request)
        .await?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

async fn run(client: &Client, code: &str) -> ExecResult {
    try_run(client, "main", json!({"code": code, "timeout_ms": 20_000}))
        .await
        .unwrap()
}

/// Runs code that has to end well; its output.
async fn good(client: &Client, code: &str) -> String {
    let result = run(client, code).await;
    assert_eq!(result.end.exit, Exit::Code(0), "{code}: {}", err(&result));
    out(&result)
}

async fn run_events(client: &Client, request: Value) -> Events {
    let body = full(request.to_string().into());
    let accept = Some("application/x-ndjson");
    let response = client
        .send(Method::POST, "/kernels/main/run", accept, body)
        .await;
    Events::new(response)
}

async fn put(client: &Client, name: &str, request: Value) -> Result<KernelInfo, Failure> {
    let (status, body) = client
        .call(Method::PUT, &format!("/kernels/{name}"), &request)
        .await;
    if status.is_success() {
        Ok(serde_json::from_slice(&body).unwrap())
    } else {
        Err(serde_json::from_slice(&body).unwrap())
    }
}

fn out(result: &ExecResult) -> String {
    result.stdout.data.text().into_owned()
}

fn err(result: &ExecResult) -> String {
    result.stderr.data.text().into_owned()
}

fn printed(event: &Event) -> String {
    match event {
        Event::Stdout { data, .. } => data.text().into_owned(),
        _ => String::new(),
    }
}

fn value(result: &ExecResult) -> Option<&str> {
    let rich = result.results.iter().find(|rich| rich.kind == "value")?;
    rich.data.get("text/plain").map(String::as_str)
}

/// The call ended with its kernel, for this cause, and the next one works without variables.
async fn died(client: &Client, code: &str, cause: Cause) -> ExecResult {
    good(client, "survivor = 1").await;
    let result = run(client, code).await;
    assert_lost(client, &result, cause).await;
    result
}

async fn assert_lost(client: &Client, result: &ExecResult, cause: Cause) {
    assert_eq!(result.end.exit, Exit::Lost, "{result:?}");
    let certificate = result.end.certificate.as_ref().unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (cause, Ended::Kernel),
        "{certificate}"
    );
    assert!(certificate.survived.files && !certificate.survived.variables);
    assert!(
        certificate.next.contains("fresh interpreter"),
        "{certificate}"
    );
    assert_eq!(
        good(client, "print('survivor' in globals())").await,
        "False\n"
    );
}

#[tokio::test]
async fn variables_live_and_values_stand_beside_the_output() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    assert_eq!(good(&client, "x = 20\nprint('hi')").await, "hi\n");
    let result = run(&client, "print('out')\nx + 1").await;
    assert_eq!(
        (out(&result).as_str(), value(&result)),
        ("out\n", Some("21"))
    );
    assert_eq!(result.end.exit, Exit::Code(0));
    assert!(result.end.peak_memory > 1 << 20);
    assert_eq!(value(&run(&client, "_ * 2").await), Some("42"));
    for quiet in [
        "x;",
        "(x\n) ; # why",
        "None",
        "y = x",
        "",
        "# only a comment",
        "print()",
    ] {
        assert_eq!(value(&run(&client, quiet).await), None, "{quiet}");
    }
    for (code, expected) in [
        ("'a;b'", "'a;b'"),
        ("x # ;", "20"),
        ("'é\\ud800'", "'é\\ud800'"),
        ("__name__", "'__main__'"),
        (
            "import os; os.getcwd() == os.path.realpath(os.environ.get('PWD', os.getcwd()))",
            "True",
        ),
    ] {
        assert_eq!(value(&run(&client, code).await), Some(expected), "{code}");
    }
    let long = run(&client, "list(range(100000))").await;
    let text = value(&long).unwrap();
    assert!(text.len() < 65_600 && text.contains("bytes left out") && text.ends_with("99999]"));
    let info: KernelInfo = client.get("/kernels/main").await;
    assert_eq!((info.generation, info.busy), (1, false));
    assert!(info.version.starts_with("3.") && info.python.ends_with("/python3"));
}

#[tokio::test]
async fn output_of_children_and_c_is_captured_live_and_in_order() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import os, subprocess, ctypes\nprint('a', end='')\nos.system('printf b')\n\
                subprocess.run(['printf', 'c'])\nos.write(1, b'd')\n\
                ctypes.CDLL(None).printf(b'e\\n')\nprint('f')";
    let text = good(&client, code).await;
    assert!(
        text.starts_with("abcd") && text.contains("e\n") && text.ends_with("f\n"),
        "{text}"
    );

    // Live: the event is there while the call still waits for a file.
    let go = guest.workspace().join("go");
    let code =
        "import os\nprint('part', end='')\nwhile not os.path.exists('go'): pass\nprint('end')";
    let mut events = run_events(&client, json!({"code": code, "timeout_ms": 20_000})).await;
    assert!(matches!(events.next().await, Some(Event::Started { .. })));
    let Some(Event::Stdout { data, .. }) = events.next().await else {
        panic!()
    };
    assert_eq!(data.text(), "part");
    std::fs::write(go, "").unwrap();
    let rest: String = events.all().await.iter().map(printed).collect();
    assert_eq!(rest, "end\n");
}

#[tokio::test]
async fn output_between_calls_goes_to_the_next() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import threading, os\ndef late():\n  while not os.path.exists('go'): pass\n  \
                print('late'); os.close(os.open('done', os.O_CREAT))\n\
                threading.Thread(target=late).start()\nprint('now')";
    assert_eq!(good(&client, code).await, "now\n");
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    until("the thread is done", || {
        guest.workspace().join("done").exists()
    })
    .await;
    assert_eq!(good(&client, "print('next')").await, "late\nnext\n");
}

#[tokio::test]
async fn tracebacks_start_at_the_users_frame() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = run(&client, "def f():\n    return 1/0\nf()").await;
    assert_eq!(result.end.exit, Exit::Code(1));
    assert!(result.end.certificate.is_none());
    let text = err(&result);
    let start =
        "Traceback (most recent call last):\n  File \"<cell 1>\", line 3, in <module>\n    f()\n";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("in f\n    return 1/0\n"));
    assert!(text.ends_with("ZeroDivisionError: division by zero\n"));
    assert!(!text.contains("<kernel>"));

    let result = run(&client, "if x\n  y").await;
    assert!(
        err(&result).starts_with("  File \"<cell 2>\", line 1\n    if x\n"),
        "{}",
        err(&result)
    );
    assert!(err(&result).contains("^\nSyntaxError"));

    for (code, part) in [
        (
            "try:\n  f()\nexcept Exception as e:\n  raise KeyError('k') from e",
            "direct cause",
        ),
        (
            "async def g(): f()\nawait g()",
            "line 2, in <module>\n    await g()",
        ),
        (
            "class E(Exception):\n  def __str__(self): 1/0\nraise E",
            "E: <",
        ),
        ("def r(): r()\nr()", "RecursionError"),
        (
            "input('name?')",
            "EOFError: input() is not available here: there is no terminal",
        ),
        ("import sys\nsys.stderr = None\n1/0", "ZeroDivisionError"),
        ("import os\nos.close(2)\n1/0", "ZeroDivisionError"),
        ("x = [0] * 10**15", "MemoryError"),
    ] {
        let result = run(&client, code).await;
        assert_eq!(result.end.exit, Exit::Code(1), "{code}");
        let text = err(&result);
        assert!(
            text.contains(part) && !text.contains("<kernel>"),
            "{code}: {text}"
        );
    }
    let text = good(&client, "import inspect\nprint(inspect.getsource(f))").await;
    assert_eq!(text, "def f():\n    return 1/0\n\n");
}

#[tokio::test]
async fn exits_are_results() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    good(&client, "import sys; kept = 1").await;
    for (code, status, text) in [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('bye')", 1, "bye\n"),
        ("sys.exit(-1)", 255, ""),
        ("exit()", 0, ""),
        ("raise SystemExit(True)", 1, ""),
    ] {
        let result = run(&client, code).await;
        assert_eq!(
            (result.end.exit, err(&result).as_str()),
            (Exit::Code(status), text),
            "{code}"
        );
        assert!(result.end.certificate.is_none());
    }
    assert_eq!(good(&client, "print(kept)").await, "1\n");
}

#[tokio::test]
async fn the_namespace_is_a_real_main_module() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n  a: int\n\
                print(pickle.loads(pickle.dumps(P(3))), sorted(n for n in globals() if n[0] != '_'))";
    assert_eq!(
        good(&client, code).await,
        "P(a=3) ['P', 'dataclasses', 'pickle']\n"
    );
    let code = "import multiprocessing as mp\ndef sq(x): return x * x\n\
                with mp.get_context('fork').Pool(2) as pool: print(pool.map(sq, [1, 2, 3]))";
    assert_eq!(good(&client, code).await, "[1, 4, 9]\n");
    good(&client, "from __future__ import annotations").await;
    let result = run(&client, "def h(a: nothing): pass\nh.__annotations__").await;
    assert_eq!(value(&result), Some("{'a': 'nothing'}"));
    let code = "import asyncio\nqueue = asyncio.Queue()\nasync def feed(): await queue.put(5)\n\
                task = asyncio.ensure_future(feed())\nawait asyncio.sleep(0)";
    good(&client, code).await;
    assert_eq!(value(&run(&client, "await queue.get()").await), Some("5"));
}

#[tokio::test]
async fn rich_values_come_beside_the_text() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "class T:\n  def _repr_html_(self): return '<b>é</b>'\n  \
                def _repr_png_(self): return b'\\x89PNG'\n  def __repr__(self): return 'T'\nT()";
    let result = run(&client, code).await;
    let Rich { kind, data } = &result.results[0];
    assert_eq!(kind, "value");
    assert_eq!(data["text/plain"], "T");
    assert_eq!(data["text/html"], "<b>é</b>");
    assert_eq!(data["image/png"], "iVBORw==");
    let result = run(&client, "display(T(), 'x'); 7").await;
    let kinds: Vec<_> = result
        .results
        .iter()
        .map(|rich| rich.kind.as_str())
        .collect();
    assert_eq!(kinds, ["display", "display", "value"]);
    let code = "class M:\n  def _repr_mimebundle_(self, include=None, exclude=None):\n    \
                return {'application/json': {'a': [1]}, 'text/latex': '$x$'}\nM()";
    let result = run(&client, code).await;
    assert_eq!(result.results[0].data["application/json"], "{\"a\": [1]}");
    assert_eq!(result.results[0].data["text/latex"], "$x$");
    let code = "class B:\n  def __repr__(self): raise ValueError('no repr')\n  \
                def _repr_html_(self): return '<i>'\nB()";
    let result = run(&client, code).await;
    assert_eq!(result.end.exit, Exit::Code(0));
    assert!(err(&result).contains("ValueError: no repr"));
    assert_eq!(result.results[0].data["text/html"], "<i>");
    // Larger than a frame may be: left out and told, and the kernel lives on.
    let code = "class H:\n  def _repr_png_(self): return bytes(20 << 20)\nH()";
    let result = run(&client, code).await;
    assert!(result.results[0].data["text/plain"].contains("image/png of 20971520 bytes left out"));
    let code = "class L:\n  def _repr_png_(self): return bytes(15 << 20)\nL()";
    let result = run(&client, code).await;
    assert_eq!(
        result.results[0].data["image/png"].len(),
        (15 << 20) / 3 * 4
    );
    let result = run(&client, "for i in range(300): display(i)").await;
    assert_eq!(result.results.len(), 256);
    assert!(err(&result).contains("44 rich results left out"));
}

#[tokio::test]
async fn what_a_cell_breaks_is_whole_for_the_next() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for code in [
        "import os, sys; os.close(1)",
        "os.close(0); os.close(2)",
        "sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "sys.stdout = None; sys.stderr = None",
        "import io; sys.stdout = io.StringIO()",
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})",
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')",
        "kept = sys.stdout.detach(), sys.stderr.detach()",
        "import builtins; del builtins.input",
        "os.chdir('/')",
    ] {
        run(&client, code).await;
        let result = run(&client, "print('o'); print('e', file=sys.stderr)").await;
        assert_eq!(
            (out(&result).as_str(), err(&result).as_str()),
            ("o\n", "e\n"),
            "{code}"
        );
        let handler = good(
            &client,
            "print(signal.getsignal(2) if 'signal' in globals() else 0)",
        )
        .await;
        assert!(!handler.contains("SIG_IGN"), "{handler}");
    }
    let info: KernelInfo = client.get("/kernels/main").await;
    assert_eq!(info.generation, 1);
}

#[tokio::test]
async fn a_fork_that_comes_back_ends_and_the_kernel_goes_on() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')";
    assert_eq!(good(&client, code).await, "child\nparent\n");
    let code =
        "pid = os.fork()\nif not pid: raise SystemExit(7)\nprint(os.waitpid(pid, 0)[1] >> 8)";
    assert_eq!(good(&client, code).await, "7\n");
    let code = "import ctypes\npid = ctypes.CDLL(None).fork()\nif pid: os.waitpid(pid, 0)\npid > 0";
    let result = run(&client, code).await;
    assert_eq!(value(&result), Some("True"));
    assert_eq!(good(&client, "print(1)").await, "1\n");
}

#[tokio::test]
async fn an_interrupted_call_keeps_the_variables() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    good(&client, "kept = 1").await;
    for code in [
        "while True: pass",
        "import time\ntry:\n  time.sleep(60)\nfinally:\n  print('cleaned up')",
        "import asyncio\nawait asyncio.sleep(60)",
        "import subprocess\nsubprocess.run(['sleep', '60'])",
        "import os\nos.system('sleep 60')\ntime.sleep(60)",
        "class S:\n  def __repr__(self):\n    while True: pass\nS()",
        "while True:\n  try: time.sleep(60)\n  except KeyboardInterrupt: break",
        "import signal; signal.signal(2, signal.default_int_handler); time.sleep(60)",
    ] {
        let request = json!({"code": code, "timeout_ms": 150});
        let result = try_run(&client, "main", request).await.unwrap();
        assert_eq!(result.end.exit, Exit::Lost, "{code}");
        let certificate = result.end.certificate.unwrap();
        assert_eq!(
            (certificate.cause, certificate.ended),
            (Cause::WallClock, Ended::Call),
            "{code}"
        );
        assert!(
            certificate.survived.variables && certificate.message.contains("timed out after 150ms")
        );
        assert_eq!(certificate.limit.as_deref(), Some("150 ms"));
        assert_eq!(good(&client, "print(kept)").await, "1\n", "{code}");
    }
}

#[tokio::test]
async fn what_cannot_be_interrupted_is_replaced() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mark = marker();
    for code in [
        "sum(iter(int, 1))".to_owned(),
        "import time\nwhile True:\n  try: time.sleep(9)\n  except KeyboardInterrupt: pass"
            .to_owned(),
        format!(
            "import signal, subprocess\nsignal.signal(2, signal.SIG_IGN)\n\
             subprocess.Popen(['sleep', '{mark}'], start_new_session=True)\nwhile True: pass"
        ),
    ] {
        good(&client, "survivor = 1").await;
        let request = json!({"code": code, "timeout_ms": 150});
        let result = try_run(&client, "main", request).await.unwrap();
        assert_lost(&client, &result, Cause::WallClock).await;
    }
    assert!(with_argument(&mark).is_empty());
    let info: KernelInfo = client.get("/kernels/main").await;
    assert_eq!(info.generation, 4);
}

#[tokio::test]
async fn processor_time_is_limited_per_call() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    good(&client, "kept = 1").await;
    let request = json!({"code": "while True: pass", "cpu_seconds": 1, "timeout_ms": 20_000});
    let result = try_run(&client, "main", request).await.unwrap();
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Cpu, Ended::Call)
    );
    assert!(result.end.cpu_ms >= 900);
    let request = json!({"code": "print(kept)", "cpu_seconds": 1});
    let result = try_run(&client, "main", request).await.unwrap();
    assert_eq!(out(&result), "1\n");
    let request = json!({"code": "sum(iter(int, 1))", "cpu_seconds": 1, "timeout_ms": 20_000});
    let result = try_run(&client, "main", request).await.unwrap();
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Cpu, Ended::Kernel)
    );
}

#[tokio::test]
async fn processor_time_of_a_kernel_is_limited() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let limits = json!({"limits": {"cpu_seconds": 1}});
    put(&client, "main", limits).await.unwrap();
    let certificate = run(&client, "while True: pass")
        .await
        .end
        .certificate
        .unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Cpu, Ended::Call)
    );
    assert_eq!(certificate.limit.as_deref(), Some("1 s"));
    let certificate = run(&client, "while True: pass")
        .await
        .end
        .certificate
        .unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Cpu, Ended::Kernel)
    );
    assert_eq!(good(&client, "print(1)").await, "1\n");
}

#[tokio::test]
async fn too_much_memory_is_an_exception_where_a_limit_is_set() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    put(&client, "main", json!({"limits": {"data": 256 << 20}}))
        .await
        .unwrap();
    let result = run(&client, "kept = 1\nx = bytearray(1 << 30)").await;
    assert_eq!(result.end.exit, Exit::Code(1));
    assert!(err(&result).ends_with("MemoryError\n"), "{}", err(&result));
    let result = run(&client, "x = []\nwhile True: x.append(bytearray(1 << 20))").await;
    assert!(err(&result).contains("MemoryError"), "{}", err(&result));
    assert_eq!(good(&client, "print(kept)").await, "1\n");
}

#[tokio::test]
async fn an_oom_kill_is_told_from_others() {
    // Inherited by the guest: the counter of a cgroup, played by a file.
    let events = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(events.path(), "oom_kill 0\n").unwrap();
    let inherited = rustix::io::dup(events.as_file()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited).to_string();
    let guest = Guest::start_with(&["--oom-fd", &number, "--memory-limit", "268435456"]).await;
    let client = guest.connect().await;
    let path = events.path().to_str().unwrap();
    let code =
        format!("import os\nopen({path:?}, 'w').write('oom_kill 1\\n')\nos.kill(os.getpid(), 9)");
    let result = died(&client, &code, Cause::Memory).await;
    assert_eq!(
        result.end.certificate.unwrap().limit.as_deref(),
        Some("256 MiB")
    );
    died(&client, "import os; os.kill(os.getpid(), 9)", Cause::Killed).await;
}

#[tokio::test]
async fn callers_interrupt_and_leave() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    good(&client, "kept = 1").await;
    let code = "print('runs')\nwhile True: pass";
    let mut events = run_events(&client, json!({"code": code})).await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    client
        .try_post("/kernels/main/interrupt", Value::Null)
        .await
        .unwrap();
    let Some(Event::End(end)) = events.all().await.pop() else {
        panic!()
    };
    assert_eq!(end.exit, Exit::Lost);
    let certificate = end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Cancelled, Ended::Call)
    );
    // An interrupt of nothing does nothing to the next call.
    client
        .try_post("/kernels/main/interrupt", Value::Null)
        .await
        .unwrap();
    assert_eq!(good(&client, "print(kept)").await, "1\n");

    // A caller that goes away ends its call, and only that.
    let other = guest.connect().await;
    let mut events = run_events(&other, json!({"code": code})).await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    drop(events);
    other.hang_up();
    assert_eq!(good(&client, "print(kept)").await, "1\n");

    // A caller that wants to come back finds the result.
    let other = guest.connect().await;
    let code = "print('runs')\nimport os\nwhile not os.path.exists('go'): pass\nkept + 1";
    let request = json!({"code": code, "id": "mine", "on_disconnect": "keep"});
    let mut events = run_events(&other, request).await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    drop(events);
    other.hang_up();
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    let result = client.result("mine").await;
    assert_eq!(
        (out(&result).as_str(), value(&result)),
        ("runs\n", Some("2"))
    );
}

#[tokio::test]
async fn calls_of_one_kernel_take_turns() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "print('runs')\nimport os\nwhile not os.path.exists('go'): pass\nlog = ['first']";
    let mut first = run_events(&client, json!({"code": code})).await;
    while !matches!(first.next().await, Some(Event::Stdout { .. })) {}
    let queued = |code: &'static str, id: &'static str| {
        let request = json!({"code": code, "id": id, "on_disconnect": "keep", "timeout_ms": 5_000});
        async { try_run(&client, "main", request).await.unwrap() }
    };
    let second = queued("log.append('second'); print(log)", "two");
    let taken_back = queued("log.append('never')", "never");
    let third = queued("log.append('third'); print(log)", "three");
    let rest = async {
        // All of them wait; one is taken back before its turn.
        for id in ["two", "never", "three"] {
            let path = format!("/jobs/{id}");
            while client.call(Method::GET, &path, &Value::Null).await.0 != 200 {}
        }
        assert_eq!(client.delete("never").await, 204);
        let info: KernelInfo = client.get("/kernels/main").await;
        assert!(info.busy);
        std::fs::write(guest.workspace().join("go"), "").unwrap();
        first.all().await
    };
    let (second, never, third, _) = tokio::join!(second, taken_back, third, rest);
    assert_eq!(out(&second), "['first', 'second']\n");
    assert_eq!(never.end.exit, Exit::Lost);
    assert_eq!(never.end.certificate.unwrap().cause, Cause::Cancelled);
    assert_eq!(out(&third), "['first', 'second', 'third']\n");
}

#[tokio::test]
async fn every_death_has_a_certificate_and_a_successor() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let result = died(
        &client,
        "print('last words')\nimport os; os._exit(3)",
        Cause::Exited,
    )
    .await;
    assert_eq!(out(&result), "last words\n");
    assert!(result.end.certificate.unwrap().message.contains("status 3"));
    let result = died(
        &client,
        "import ctypes; ctypes.string_at(0)",
        Cause::Crashed,
    )
    .await;
    let certificate = result.end.certificate.unwrap();
    assert!(certificate.message.contains("SIGSEGV") && certificate.signal == Some(11));
    let text = result.stderr.data.text();
    assert!(
        text.contains("Segmentation fault") && text.contains("<cell 3>"),
        "{text}"
    );
    died(&client, "import os; os.abort()", Cause::Crashed).await;
    died(&client, "import os; os.kill(os.getpid(), 9)", Cause::Killed).await;
    died(&client, "import os; os.closerange(3, 1000)", Cause::Exited).await;
    died(
        &client,
        "import os; os.execvp('true', ['true'])",
        Cause::Exited,
    )
    .await;
    died(
        &client,
        "import os; os.kill(os.getppid(), 9); os._exit(1)",
        Cause::Exited,
    )
    .await;
}

#[tokio::test]
async fn a_death_between_calls_is_told_with_the_next() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import threading, os\ndef die():\n  while not os.path.exists('go'): pass\n  os._exit(4)\n\
                threading.Thread(target=die).start()\nprint(os.getpid())";
    let pid = good(&client, code).await;
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    let process = PathBuf::from(format!("/proc/{}", pid.trim()));
    until("the kernel is gone", || !process.exists()).await;
    let result = run(&client, "print('fresh')").await;
    assert_eq!(
        (result.end.exit, out(&result).as_str()),
        (Exit::Code(0), "fresh\n")
    );
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Exited, Ended::Kernel)
    );
    assert!(
        certificate.message.starts_with("between two calls") && !certificate.survived.variables
    );
    assert!(run(&client, "1").await.end.certificate.is_none());
}

#[tokio::test]
async fn nothing_printed_is_taken_for_protocol() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "import os, sys\nframe = b'\\x12\\0\\0\\0D' + bytes(17)\nos.write(1, frame)\nos.write(2, frame)\n\
                print('{\"end\": {\"exit\": {\"code\": 0}}}')\nkept = 1";
    let result = run(&client, code).await;
    assert_eq!(result.end.exit, Exit::Code(0));
    assert_eq!(&result.stdout.data.0[..5], b"\x12\0\0\0D");
    assert_eq!(good(&client, "print(kept)").await, "1\n");

    // Straight into the control channel.
    for (bytes, cause) in [
        ("b'garbage' * 100", Cause::Exited),
        ("b'\\xff' * 9", Cause::Exited),
        // The end of another call.
        ("b'\\x12\\0\\0\\0D' + bytes(17)", Cause::Exited),
        ("b'\\x05\\0\\0\\0S' + bytes(4)", Cause::Exited),
    ] {
        let result = died(
            &client,
            &format!("import os\nos.write(100, {bytes})\nwhile True: pass"),
            cause,
        )
        .await;
        assert!(
            result
                .end
                .certificate
                .unwrap()
                .message
                .contains("control channel")
        );
    }
    // A forged end of this very call: believed, as user code may lie about itself; then the real
    // end comes uncalled for, and the kernel is replaced.
    good(&client, "survivor = 1").await;
    let code = "import os, sys\nn = int(sys._getframe().f_code.co_filename[6:-1])\n\
                os.write(100, b'\\x12\\0\\0\\0D' + n.to_bytes(4, 'little') + bytes(13))";
    let result = run(&client, code).await;
    assert_eq!(result.end.exit, Exit::Code(0));
    let next = run(&client, "pass").await;
    assert!(
        next.end
            .certificate
            .unwrap()
            .message
            .contains("control channel")
    );
    assert_eq!(
        good(&client, "print('survivor' in globals())").await,
        "False\n"
    );
}

#[tokio::test]
async fn a_flood_is_cut_and_counted() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "line = 'x' * 65535\nfor _ in range(3200): print(line)\nkept = 1";
    let request = json!({"code": code, "output_limit": 1000, "timeout_ms": 60_000});
    let result = try_run(&client, "main", request).await.unwrap();
    assert_eq!(result.end.exit, Exit::Code(0));
    assert_eq!(
        (result.stdout.data.len(), result.stdout.total),
        (1000, 3200 << 16)
    );
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::Output, Ended::Output)
    );
    assert_eq!(good(&client, "print(kept)").await, "1\n");
    // One that never ends.
    let code = "while True: print('y' * 1000)";
    let result = try_run(&client, "main", json!({"code": code, "timeout_ms": 300}))
        .await
        .unwrap();
    assert_eq!(result.end.certificate.unwrap().ended, Ended::Call);
    assert!(support::private_memory(guest.pid()) < 64 << 20);
    // Between two calls.
    let code = "import threading, os\ndef flood():\n  for _ in range(100): print('z' * 65535)\n  \
                open('flooded', 'w')\nthreading.Thread(target=flood).start()";
    run(&client, code).await;
    until("the flood is over", || {
        guest.workspace().join("flooded").exists()
    })
    .await;
    good(&client, "print(kept)").await;
}

#[tokio::test]
async fn a_flooded_control_channel_holds_nobody_up() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let other = guest.connect().await;
    // Empty results, each of them whole: nonsense would end the kernel at once.
    let flood = "import os\nopen('flooding', 'w')\n\
                 while True: os.write(100, b'\\x02\\0\\0\\0V\\0' * 20000)";
    good(&client, "survivor = 1").await;
    let request = json!({"code": flood, "timeout_ms": 1000});
    let call = tokio::spawn(async move {
        let result = try_run(&client, "main", request).await.unwrap();
        (client, result)
    });
    until("the flood comes", || {
        guest.workspace().join("flooding").exists()
    })
    .await;
    let health = other.get::<Health>("/health");
    let health = tokio::time::timeout(PATIENCE, health).await.unwrap();
    assert_eq!(health.status, "ok");
    let (client, result) = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!(result.results.len(), 256);
    assert!(err(&result).contains("rich results left out"), "{result:?}");
    assert_lost(&client, &result, Cause::Output).await;

    // Large ones, of which a flood would take long: the timeout is seen meanwhile. The interrupt
    // may come in the middle of a frame, and then takes the kernel with it.
    let code = "import os\nbody = b'\\0\\x0atext/plain' + (2**22).to_bytes(4, 'little') + b'x' * 2**22\n\
                frame = (len(body) + 1).to_bytes(4, 'little') + b'V' + body\n\
                while True: os.write(100, frame)";
    let request = json!({"code": code, "timeout_ms": 1000});
    let call = try_run(&client, "main", request);
    let result = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
    assert_eq!(result.end.certificate.unwrap().cause, Cause::WallClock);
    good(&client, "print('works')").await;
}

#[tokio::test]
async fn kernels_have_names() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let info = put(&client, "a", json!({"env": {"WHO": "a"}}))
        .await
        .unwrap();
    assert_eq!((info.name.as_str(), info.generation), ("a", 1));
    assert_eq!(put(&client, "a", json!({})).await.unwrap(), info);
    let code = "import os\nx = os.environ.get('WHO')\nprint(x)";
    for (name, expected) in [("a", "a\n"), ("b", "None\n")] {
        let result = try_run(&client, name, json!({"code": code})).await.unwrap();
        assert_eq!(out(&result), expected);
    }
    let all: Vec<KernelInfo> = client.get("/kernels").await;
    assert_eq!(
        all.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );

    let code = "import atexit\natexit.register(lambda: open('left', 'w'))";
    try_run(&client, "a", json!({"code": code})).await.unwrap();
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/a", &Value::Null)
            .await
            .0,
        204
    );
    assert!(guest.workspace().join("left").exists());
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/a", &Value::Null)
            .await
            .0,
        404
    );
    assert_eq!(
        client.call(Method::GET, "/kernels/a", &Value::Null).await.0,
        404
    );

    // Removed in the middle of a call.
    let mut events = run_events(&client, json!({"code": "print(1)\nwhile True: pass"})).await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/main", &Value::Null)
            .await
            .0,
        204
    );
    let Some(Event::End(end)) = events.all().await.pop() else {
        panic!()
    };
    assert_eq!(end.certificate.unwrap().cause, Cause::Cancelled);

    for bad in ["a.b", "%20", &"x".repeat(65)] {
        assert_eq!(
            put(&client, bad, json!({})).await.unwrap_err().code,
            Code::InvalidInput
        );
    }
    for n in 0..31 {
        try_run(&client, &format!("k{n}"), json!({"code": ""}))
            .await
            .unwrap();
    }
    let failure = try_run(&client, "more", json!({"code": ""}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::TooMany);
}

/// An interpreter that takes forever to start while there is a file `slow`.
fn slow_python(guest: &Guest, mark: &str) -> String {
    let path = guest.workspace().join("slow-python");
    let text = format!("#!/bin/sh\nif [ -e slow ]; then sleep {mark}; fi\nexec python3 \"$@\"\n");
    std::fs::write(&path, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_start_of_a_kernel_is_part_of_the_call() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let (mark, slow) = (marker(), guest.workspace().join("slow"));
    let python = slow_python(&guest, &mark);
    put(&client, "main", json!({"python": python}))
        .await
        .unwrap();
    std::fs::write(&slow, "").unwrap();
    run(&client, "import os; os._exit(1)").await;

    // Its time is over.
    let request = json!({"code": "open('ran', 'w')", "timeout_ms": 300});
    let result = try_run(&client, "main", request.clone()).await.unwrap();
    assert_eq!(result.end.exit, Exit::Lost);
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::WallClock, Ended::Kernel)
    );
    assert!(certificate.message.contains("started"), "{certificate}");
    assert!(result.end.duration_ms >= 300 && with_argument(&mark).is_empty());

    // Its caller goes away.
    let other = guest.connect().await;
    let request = json!({"code": "open('ran', 'w')", "on_disconnect": "cancel"});
    let call = tokio::spawn({
        let mut sender = other.sender.clone();
        let request = http::Request::post("http://guest/kernels/main/run")
            .body(full(request.to_string().into()))
            .unwrap();
        async move { sender.send_request(request).await.is_ok() }
    });
    until("it starts", || !with_argument(&mark).is_empty()).await;
    call.abort();
    other.hang_up();
    until("it is gone", || with_argument(&mark).is_empty()).await;

    // Its kernel is removed.
    let path = "/kernels/main/run";
    let call = client.try_post(path, json!({"code": "open('ran', 'w')"}));
    let delete = async {
        until("it starts", || !with_argument(&mark).is_empty()).await;
        client
            .call(Method::DELETE, "/kernels/main", &Value::Null)
            .await
    };
    let (call, (status, _)) = tokio::join!(call, delete);
    assert!(status.is_success() && with_argument(&mark).is_empty());
    assert_eq!(call.unwrap_err().code, Code::NotFound);

    assert!(!guest.workspace().join("ran").exists());
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

#[tokio::test]
async fn a_kernel_that_nobody_waits_for_is_not_started() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mark = marker();
    let python = slow_python(&guest, &mark);
    std::fs::write(guest.workspace().join("slow"), "").unwrap();
    let other = guest.connect().await;
    let ask = tokio::spawn({
        let mut sender = other.sender.clone();
        let request = http::Request::put("http://guest/kernels/main")
            .body(full(json!({"python": python}).to_string().into()))
            .unwrap();
        async move { sender.send_request(request).await.is_ok() }
    });
    until("it starts", || !with_argument(&mark).is_empty()).await;
    ask.abort();
    other.hang_up();
    until("it is gone", || with_argument(&mark).is_empty()).await;
    let deadline = std::time::Instant::now() + PATIENCE;
    while !client.get::<Vec<KernelInfo>>("/kernels").await.is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is still listed");
    }
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

#[tokio::test]
async fn without_python_the_rest_works() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let none = json!({"env": {"PATH": "/nonexistent"}});
    let failure = put(&client, "main", none).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (Code::Missing, "no Python in this sandbox")
    );
    assert!(failure.hint.is_some());
    assert!(client.get::<Vec<KernelInfo>>("/kernels").await.is_empty());
    for (python, part) in [
        ("/no/python", "/no/python"),
        ("python9", "no python9"),
        ("/bin/true", "ended before"),
    ] {
        let failure = put(&client, "main", json!({"python": python}))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::Missing);
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(out(&client.shell("echo works").await), "works\n");
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

/// Interpreters of this machine besides the first of the search path.
fn pythons() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/root/.pyenv/versions")
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path().join("bin/python"))
                .collect()
        })
        .unwrap_or_default();
    found.push("/usr/bin/python3".into());
    found.retain(|path| path.exists());
    found.sort();
    found
}

#[tokio::test]
async fn every_python_from_3_8_on_works() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for python in pythons() {
        let python = python.to_str().unwrap();
        let info = match put(&client, "k", json!({"python": python})).await {
            Ok(info) => info,
            Err(failure) => {
                assert_eq!(failure.code, Code::Missing);
                assert!(
                    failure.message.contains("the REPL needs 3.8 or later"),
                    "{failure}"
                );
                assert!(
                    ["2.7", "3.6", "3.7"]
                        .iter()
                        .any(|old| failure.message.contains(old))
                );
                continue;
            }
        };
        let run = async |code: &str| {
            try_run(&client, "k", json!({"code": code, "timeout_ms": 5000}))
                .await
                .unwrap()
        };
        assert_eq!(value(&run("x = 1\nx + 1").await), Some("2"), "{info:?}");
        let result = run("1/0").await;
        let text = err(&result);
        assert!(
            text.starts_with("Traceback (most recent call last):\n  File \"<cell 2>\""),
            "{text}"
        );
        assert!(text.contains("1/0") && !text.contains("kernel"), "{text}");
        assert_eq!(
            value(&run("import asyncio\nawait asyncio.sleep(0, 5)").await),
            Some("5")
        );
        let loops = json!({"code": "while True: pass", "timeout_ms": 100});
        let result = try_run(&client, "k", loops).await.unwrap();
        assert!(
            result.end.certificate.unwrap().survived.variables,
            "{info:?}"
        );
        assert_eq!(
            out(&run("import inspect\ndef f(): pass\nprint(x, inspect.getsource(f))").await),
            "1 def f(): pass\n\n"
        );
        client
            .call(Method::DELETE, "/kernels/k", &Value::Null)
            .await;
    }
}

/// An environment with the packages of rich results, made once.
fn environment() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = target.join("rich-env");
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if !ready.exists() {
        let run = |command: &mut std::process::Command| {
            let status = command.status().unwrap();
            assert!(status.success(), "{command:?}");
        };
        run(std::process::Command::new("/usr/bin/python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder));
        run(std::process::Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "-q",
            "matplotlib",
            "pandas",
            "pillow",
        ]));
        std::fs::write(ready, "").unwrap();
    }
    python
}

#[tokio::test]
async fn figures_tables_and_pictures_are_results() {
    let python = tokio::task::spawn_blocking(environment).await.unwrap();
    let guest = Guest::start().await;
    let client = guest.connect().await;
    put(&client, "main", json!({"python": python.to_str().unwrap()}))
        .await
        .unwrap();
    let run = async |code: &str| {
        let result = try_run(&client, "main", json!({"code": code}))
            .await
            .unwrap();
        assert_eq!(result.end.exit, Exit::Code(0), "{}", err(&result));
        assert_eq!(err(&result), "");
        result
    };
    let is_png = |rich: &Rich| {
        rich.data
            .get("image/png")
            .is_some_and(|d| d.starts_with("iVBORw0KGgo"))
    };

    // Without show, at the end; and each figure once.
    let result = run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);").await;
    assert_eq!(result.results.len(), 1);
    assert_eq!(result.results[0].kind, "display");
    assert!(is_png(&result.results[0]));
    assert!(
        run("1")
            .await
            .results
            .iter()
            .all(|rich| rich.kind == "value")
    );
    let result =
        run("plt.plot([1]); plt.show(); print('between'); plt.figure(); plt.plot([2]);").await;
    assert_eq!(result.results.iter().filter(|rich| is_png(rich)).count(), 2);
    let result = run("fig, ax = plt.subplots(); ax.plot([1]); fig").await;
    assert_eq!(result.results.len(), 1);
    assert!(result.results[0].kind == "value" && is_png(&result.results[0]));
    let result = run("fig, ax = plt.subplots(); ax.plot([1]); fig.show()").await;
    assert_eq!(result.results.iter().filter(|rich| is_png(rich)).count(), 1);

    let result = run("import pandas as pd\npd.DataFrame({'a': [1, 2]})").await;
    assert!(result.results[0].data["text/html"].contains("<table"));
    assert!(result.results[0].data["text/plain"].contains("a\n0  1"));
    for mode in ["RGB", "RGBA", "CMYK", "F", "1", "P"] {
        let result = run(&format!(
            "from PIL import Image\nImage.new('{mode}', (2, 2))"
        ))
        .await;
        assert!(is_png(&result.results[0]), "{mode}");
    }
}
