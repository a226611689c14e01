//! What calls give: values, output, tracebacks, pictures; and what a cell leaves for the next.

use crate::support::{Guest, private_memory, until};
use crate::{died, err, good, out, printed, put, run, run_events, try_run, value};
use ringfence_proto::{Cause, Ended, Event, Exit, KernelInfo, Rich};
use serde_json::json;
use std::path::{Path, PathBuf};

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
    assert!(private_memory(guest.pid()) < 64 << 20);
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

#[tokio::test]
async fn tracebacks_point_at_what_failed() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    // With the end of the last line and without, before linecache is there and after.
    let mut seen = Vec::new();
    for code in ["1/0", "1/0\n", "1/0", "x = 1\n1/0"] {
        let text = err(&run(&client, code).await);
        let mut lines = text.lines().skip_while(|line| line.trim() != "1/0");
        lines.next().unwrap();
        seen.push(lines.next().unwrap().to_owned());
    }
    // Before 3.11 nothing points.
    if !seen[0].starts_with("ZeroDivisionError") {
        assert_eq!(seen, ["    ~^~"; 4]);
    }
}
