//! Every way to end: exits, interrupts, limits and deaths, each with its certificate.

use crate::support::{Guest, PATIENCE, marker, until, with_argument};
use crate::{assert_lost, died, err, good, out, put, run, run_events, try_run, value};
use ringfence_proto::{Cause, Ended, Event, Exit, Health, KernelInfo};
use serde_json::{Value, json};
use std::path::PathBuf;

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
