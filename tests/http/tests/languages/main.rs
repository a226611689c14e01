//! Every language, by one list: hello, input, exit code, an error with its line, time, memory,
//! network and writing, on every engine.

mod cli;
mod programs;

use programs::{ALL, Programs};
use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};
use std::net::TcpListener;

/// Runs code and gives what came of it.
async fn run(server: &Server, mut body: Value, language: &str) -> Outcome<Value> {
    body["language"] = json!(language);
    let (status, outcome) = server.post("/run", &body).await?;
    if status != 200 {
        return Err(format!("{language}: {status} {outcome}").into());
    }
    Ok(outcome)
}

/// What every language must do.
async fn passes(server: &Server, programs: &Programs) -> Outcome {
    let name = programs.language;
    let hello = run(server, json!({"code": programs.hello}), name).await?;
    assert_eq!(hello["stdout"], "hello\n", "{name}: {hello}");
    assert_eq!(
        (&hello["ok"], &hello["exit_code"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(hello["language"], name);
    let text = hello["text"].as_str().ok_or("no text")?;
    assert!(text.starts_with("exit_code: 0\nstdout:\nhello\n"), "{text}");

    let body = json!({"code": programs.stdin, "stdin": "some words\n"});
    let input = run(server, body, name).await?;
    assert_eq!(input["stdout"], "SOME WORDS\n", "{name}: {input}");

    let seven = run(server, json!({"code": programs.exit}), name).await?;
    assert_eq!(seven["exit_code"], 7, "{name}: {seven}");
    assert_eq!(seven["ok"], false, "{name}: {seven}");

    let wrong = run(server, json!({"code": programs.error}), name).await?;
    let said = wrong["stderr"].as_str().ok_or("no stderr")?;
    assert!(said.contains(programs.line_three), "{name}: {said}");
    assert_ne!(wrong["exit_code"], 0, "{name}: {wrong}");

    let body = json!({"code": programs.forever, "timeout_seconds": 1});
    let late = run(server, body, name).await?;
    assert_eq!(late["exit_code"], 124, "{name}: {late}");
    assert_eq!(late["certificate"]["cause"], "wall_clock", "{name}: {late}");
    assert_eq!(late["ok"], false, "{name}: {late}");

    let body = json!({"code": programs.hog, "memory": "128m", "timeout_seconds": 60});
    let hog = run(server, body, name).await?;
    // A Java that sees the limit of its container keeps to it, and says so itself.
    let said = hog["stderr"].as_str().ok_or("no stderr")?;
    if !(hog["backend"] == "docker" && said.contains("OutOfMemoryError")) {
        assert_eq!(hog["certificate"]["cause"], "memory", "{name}: {hog}");
        assert_eq!(hog["exit_code"], 137, "{name}: {hog}");
    }

    // The control: the same program reaches the same port when it has the host's network.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    for (network, expected) in [(true, "reached\n"), (false, "denied\n")] {
        let code = programs.connect.replace("PORT", &port);
        let probe = run(server, json!({"code": code, "network": network}), name).await?;
        assert_eq!(probe["stdout"], expected, "{name}: {probe}");
        assert_eq!(probe["sandbox_network"], network);
    }

    // The last one is the control: what is tried works where writing is allowed.
    let write = run(server, json!({"code": programs.write}), name).await?;
    assert_eq!(
        write["stdout"], "denied\ndenied\nwrote\n",
        "{name}: {write}"
    );
    Ok(())
}

async fn on_native(language: &str) -> Outcome {
    on(&["--allow-host-network"], language).await
}

async fn on_docker(language: &str) -> Outcome {
    let image = format!("{language}=ringfence-test/languages");
    let backend = ["--backend", "docker", "--language-image", &image];
    on(
        &[&backend[..], &["--allow-host-network"]].concat(),
        language,
    )
    .await
}

async fn on(args: &[&str], language: &str) -> Outcome {
    let server = Server::start(args)?;
    let programs = ALL.iter().find(|p| p.language == language);
    passes(&server, programs.ok_or("no programs")?).await?;
    nothing_is_left(&server).await
}

/// Sandboxes go after the answer: waits for that.
async fn nothing_is_left(server: &Server) -> Outcome {
    ringfence_http_tests::until(async || {
        let left = std::fs::read_dir(&server.state)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .any(|name| name.starts_with("run-"));
        Ok((!left).then_some(()))
    })
    .await
}

macro_rules! languages {
    ($($test:ident = $name:literal,)+) => {
        mod native {
            $(
                #[tokio::test]
                async fn $test() -> super::Outcome {
                    super::on_native($name).await
                }
            )+
        }

        mod docker {
            $(
                #[tokio::test]
                async fn $test() -> super::Outcome {
                    super::on_docker($name).await
                }
            )+
        }

        const TESTED: &[&str] = &[$($name),+];
    };
}

languages! {
    python = "python",
    javascript = "javascript",
    typescript = "typescript",
    ruby = "ruby",
    php = "php",
    perl = "perl",
    lua = "lua",
    r = "r",
    bash = "bash",
    sh = "sh",
    zsh = "zsh",
    go = "go",
    rust = "rust",
    java = "java",
    c = "c",
    cpp = "c++",
}

#[tokio::test]
async fn every_known_language_is_on_the_list_and_here() -> Outcome {
    let server = Server::start(&[])?;
    let (status, known) = server.get("/languages").await?;
    assert_eq!(status, 200);
    let names: Vec<&str> = known
        .as_array()
        .ok_or("no list")?
        .iter()
        .filter_map(|language| language["name"].as_str())
        .collect();
    assert_eq!(names, TESTED);
    for language in known.as_array().into_iter().flatten() {
        assert!(language["native"].is_string(), "{language}");
    }
    Ok(())
}

#[tokio::test]
async fn the_class_with_main_is_run_wherever_it_stands() -> Outcome {
    let server = Server::start(&[])?;
    let main = "public static void main(String[] a) { System.out.println(new Other().word()); }";
    let nested = format!(
        "class Outer {{ static class Other {{ String word() {{ return \"in\"; }} }}\n{main} }}"
    );
    let inner = format!(
        "public class Shell {{ static class Run {{ {main} }} }}\nclass Other {{ String word() {{ return \"two\"; }} }}"
    );
    for (code, printed, path) in [
        (nested, "in\n", "/tmp/code/Outer.java"),
        (inner, "two\n", "/tmp/code/Shell.java"),
    ] {
        let done = run(&server, json!({"code": code}), "java").await?;
        let told = (&done["stdout"], &done["script_path"]);
        assert_eq!(told, (&json!(printed), &json!(path)), "{done}");
    }
    Ok(())
}
