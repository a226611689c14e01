use crate::{Outcome, Subject, Wrong, holds, same};
use ringfence_core::proto::{Cause, Ended, Exit, KernelInfo, RunRequest};

pub(super) async fn keeps_state(s: &Subject) -> Outcome {
    s.python("import math\nx = 41\ndef f(n): return n + 1")
        .await?;
    let done = s.python("print('out')\nf(x)").await?;
    same!(done.stdout.data.text(), "out\n");
    same!(done.results.len(), 1);
    same!(
        done.results[0].data.get("text/plain").map(String::as_str),
        Some("42")
    );
    // Files and commands share the sandbox.
    s.python("open('made', 'w').write('by python')").await?;
    same!(s.shell("cat made").await?.stdout.data.text(), "by python");
    Ok(())
}

pub(super) async fn output_is_heard_from_children(s: &Subject) -> Outcome {
    let done = s
        .python("import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d')")
        .await?;
    same!(done.stdout.data.text(), "a\nb\nd\n");
    same!(done.stderr.data.text(), "c\n");
    Ok(())
}

pub(super) async fn exceptions_and_exit(s: &Subject) -> Outcome {
    let done = s.python("def g():\n    1/0\ng()").await?;
    same!(done.end.exit, Exit::Code(1));
    let text = done.stderr.data.text().into_owned();
    holds!(text.starts_with("Traceback"), text);
    holds!(
        text.contains("ZeroDivisionError") && text.contains("1/0"),
        text
    );
    holds!(!text.contains("kernel"), text);
    same!(
        s.python("import sys; sys.exit(3)").await?.end.exit,
        Exit::Code(3)
    );
    let asked = s.python("input()").await?;
    holds!(
        asked.stderr.data.text().contains("EOFError"),
        asked.stderr.data.text()
    );
    same!(s.python("print(1").await?.end.exit, Exit::Code(1));
    Ok(())
}

pub(super) async fn interrupt_keeps_variables(s: &Subject) -> Outcome {
    s.python("kept = 'here'").await?;
    let done = s
        .python_within("print('so far')\nwhile True: pass", 500)
        .await?;
    same!(done.end.exit, Exit::Lost);
    same!(done.stdout.data.text(), "so far\n");
    let certificate = done
        .end
        .certificate
        .ok_or_else(|| Wrong("no certificate".into()))?;
    same!(
        (certificate.cause, certificate.ended),
        (Cause::WallClock, Ended::Call)
    );
    holds!(certificate.survived.variables && certificate.survived.files);
    same!(s.python("print(kept)").await?.stdout.data.text(), "here\n");
    Ok(())
}

pub(super) async fn deaths_have_certificates(s: &Subject) -> Outcome {
    let segfault = "import ctypes; ctypes.string_at(0)";
    // A loop in C that never looks at signals.
    let stubborn = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
                    sum(iter(int, 1))";
    for (code, cause) in [
        ("import os; os._exit(7)", Cause::Exited),
        (segfault, Cause::Crashed),
        (stubborn, Cause::WallClock),
    ] {
        s.python("x = 1").await?;
        s.python("open('file', 'w').write('stays')").await?;
        let done = s.python_within(code, 2000).await?;
        let certificate = done
            .end
            .certificate
            .ok_or_else(|| Wrong(format!("none for {code}")))?;
        same!(
            (code, certificate.cause, certificate.ended),
            (code, cause, Ended::Kernel)
        );
        holds!(!certificate.survived.variables && certificate.survived.files);
        holds!(!certificate.next.is_empty());
        let after = s
            .python("print('x' in globals(), open('file').read())")
            .await?;
        same!(
            (code, after.stdout.data.text().as_ref()),
            (code, "False stays\n")
        );
    }
    Ok(())
}

pub(super) async fn contexts_are_apart(s: &Subject) -> Outcome {
    let run = async |kernel: &str, code: &str| -> Result<String, Wrong> {
        let request = RunRequest {
            code: code.into(),
            ..RunRequest::default()
        };
        Ok(s.guest
            .run(kernel, &request)
            .await?
            .stdout
            .data
            .text()
            .into_owned())
    };
    run("one", "x = 1").await?;
    run("two", "x = 2").await?;
    same!(run("one", "print(x)").await?, "1\n");
    same!(run("two", "print(x)").await?, "2\n");
    let kernels: Vec<KernelInfo> = s.guest.get("/kernels", &()).await?;
    same!(kernels.len(), 2);
    let bad = RunRequest {
        code: "1".into(),
        ..RunRequest::default()
    };
    holds!(s.guest.run("a.b", &bad).await.is_err());
    Ok(())
}

pub(super) async fn protocol_cannot_be_printed(s: &Subject) -> Outcome {
    let noise = "import sys, os\n\
                 for b in range(256): os.write(1, bytes([9, 0, 0, 0, b]) * 20)\n\
                 sys.stderr.write('\\x05\\x00\\x00\\x00D\\x00' * 100)";
    same!(s.python(noise).await?.end.exit, Exit::Code(0));
    same!(
        s.python("print('next')").await?.stdout.data.text(),
        "next\n"
    );
    Ok(())
}
