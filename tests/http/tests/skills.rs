//! Skills: folders of instructions, by the command line, over HTTP and in sandboxes.

use ringfence_http_tests::{Outcome, Server, ringfence};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of skills of this repository.
fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../skills")
}

fn skill(folder: &Path, name: &str, text: &str) -> Outcome<PathBuf> {
    let path = folder.join(name);
    std::fs::create_dir_all(&path)?;
    std::fs::write(path.join("SKILL.md"), text)?;
    Ok(path)
}

const PDF: &str = "---\nname: PDF\ndescription: Reads <PDF> files.\n---\nOpen it, then read it.\n";

/// The command line, on a state of its own; its sandboxes go with it.
struct Place(tempfile::TempDir);

impl Place {
    fn run(&self, args: &[&str]) -> Outcome<Output> {
        Ok(Command::new(ringfence())
            .args(args)
            .env_remove("RINGFENCE_URL")
            .env("RINGFENCE_STATE_DIR", self.0.path().join("state"))
            .output()?)
    }

    fn ok(&self, args: &[&str]) -> Outcome<String> {
        let done = self.run(args)?;
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}");
        Ok(String::from_utf8(done.stdout)?)
    }

    /// The exit status and the message of a command that fails.
    fn refused(&self, args: &[&str]) -> Outcome<(Option<i32>, String)> {
        let done = self.run(args)?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Ok((done.status.code(), said))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.run(&["rm", "--all"]);
    }
}

#[test]
fn people_list_show_and_give_them() -> Outcome {
    let place = Place(tempfile::tempdir()?);
    let folder = place.0.path().join("skills");
    let pdf = skill(&folder, "pdf", PDF)?;
    skill(&folder, "csv", "no front matter")?;
    let here = folder.to_str().ok_or("an odd path")?;
    let list = place.ok(&["skills", "ls", here])?;
    assert_eq!(
        list,
        " SKILL  DESCRIPTION\n csv\n pdf    Reads <PDF> files.\n"
    );
    let list: Value = serde_json::from_str(&place.ok(&["skills", "ls", here, "--json"])?)?;
    assert_eq!(
        list["skills"][1],
        json!({"name": "pdf", "title": "PDF", "description": "Reads <PDF> files.",
            "path": "/sandbox/skills/pdf/SKILL.md"})
    );
    let prompt = place.ok(&["skills", "ls", here, "--prompt"])?;
    assert_eq!(list["prompt"], prompt);
    assert!(prompt.contains("<description>Reads &lt;PDF&gt; files.</description>"));
    assert_eq!(place.ok(&["skills", "show", "pdf", here])?, PDF);
    let own = std::fs::read_to_string(ours().join("ringfence/SKILL.md"))?;
    assert_eq!(place.ok(&["skills", "show", "ringfence"])?, own);
    let (status, said) = place.refused(&["skills", "show", "xls", here])?;
    assert_eq!(status, Some(66), "{said}");
    assert!(said.contains("there are csv, pdf"), "{said}");
    // Given to one that is gone afterwards, and to one that is kept.
    let cat = ["--", "tail", "-n1", "/sandbox/skills/pdf/SKILL.md"];
    let run = [&["run", "--skills", here], &cat[..]].concat();
    assert_eq!(place.ok(&run)?, "Open it, then read it.\n");
    let one = pdf.to_str().ok_or("an odd path")?;
    place.ok(&["new", "work", "--skills", one])?;
    let exec = [&["exec", "work"], &cat[..]].concat();
    assert_eq!(place.ok(&exec)?, "Open it, then read it.\n");
    let of_session = place.ok(&["skills", "ls", "--session", "work", "--json"])?;
    let of_session: Value = serde_json::from_str(&of_session)?;
    assert_eq!(of_session["skills"], json!([list["skills"][1]]));
    let (status, said) = place.refused(&["new", "--skills", "/nowhere"])?;
    assert_eq!(status, Some(66), "{said}");
    let (status, said) =
        place.refused(&["run", "--skills", here, "--skills", "/tmp", "-c", "1"])?;
    assert_ne!(status, Some(0), "{said}");
    Ok(())
}

#[tokio::test]
async fn sessions_have_those_of_the_server_and_those_that_are_allowed() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (all, mine, other) = ["all", "mine", "other"]
        .map(|name| folder.path().join(name))
        .into();
    skill(&all, "pdf", PDF)?;
    skill(&mine, "csv", "")?;
    skill(&other, "xls", "")?;
    let paths = [&all, &mine, &other].map(|path| path.to_string_lossy().into_owned());
    let [all, mine, other] = paths;
    let server = Server::start(&["--skills", &all, "--allow-mount", &mine])?;
    let names = |list: &Value| -> Vec<String> {
        let skills = list["skills"].as_array().cloned().unwrap_or_default();
        skills
            .iter()
            .filter_map(|skill| skill["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (_, of_server) = server.get("/skills").await?;
    assert_eq!(names(&of_server), ["pdf"]);
    let asked = json!({"key": "a", "spec": {"skills": [mine, all]}});
    let id = server.session_with(&asked).await?;
    let (_, of_session) = server.get("/sessions/key:a/skills").await?;
    assert_eq!(names(&of_session), ["csv", "pdf"]);
    let text = of_session["prompt"].as_str().unwrap_or_default();
    assert!(text.contains("<location>/sandbox/skills/pdf/SKILL.md</location>"));
    // Nothing inside changes them; outside, the same command does.
    let write = "/sandbox/skills/pdf/new";
    for command in [
        format!("touch {write}"),
        "rm /sandbox/skills/pdf/SKILL.md".to_owned(),
        "mkdir /sandbox/skills/more".to_owned(),
    ] {
        let done = server.bash(&id, &command).await?;
        assert_ne!(done["return_code"], 0, "{command}");
    }
    let outside = Path::new(&all).join("pdf/new");
    assert!(Command::new("touch").arg(&outside).status()?.success());
    assert_eq!(
        server.bash(&id, &format!("ls {write}")).await?["return_code"],
        0
    );
    // What the policy does not name is refused, whether it is there or not.
    for (path, refused) in [(other.as_str(), 403), ("/nowhere", 403), ("relative", 422)] {
        let spec = json!({"spec": {"skills": [path]}});
        let (status, answer) = server.post("/sessions", &spec).await?;
        assert_eq!(status, refused, "{path}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn hostile_folders_give_away_nothing_of_the_host() -> Outcome {
    let folder = tempfile::tempdir()?;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "of the host")?;
    let root = folder.path().join("skills");
    let good = skill(&root, "good", "---\nname: good\n---\n")?;
    symlink(&secret, good.join("absolute"))?;
    symlink("../../secret", good.join("relative"))?;
    symlink("/etc/shadow", good.join("shadow"))?;
    let path = root.to_string_lossy().into_owned();
    let server = Server::start(&["--allow-mount", &path])?;
    let spec = json!({"spec": {"skills": [path]}});
    let id = server.session_with(&spec).await?;
    for name in ["absolute", "relative"] {
        assert_eq!(std::fs::read_to_string(good.join(name))?, "of the host");
        let done = server
            .bash(&id, &format!("cat /sandbox/skills/good/{name}"))
            .await?;
        assert_ne!(done["return_code"], 0, "{name}: {done}");
    }
    let done = server.bash(&id, "cat /sandbox/skills/good/shadow").await?;
    assert_ne!(done["return_code"], 0, "{done}");
    // A folder or a file that is elsewhere, odd names, and what is no text.
    let refuse = async |why: &str| -> Outcome {
        let (status, answer) = server.post("/sessions", &spec).await?;
        assert!((400..500).contains(&status), "{why}: {status} {answer}");
        let told = answer["detail"].to_string();
        assert!(told.contains(why), "{told} does not say {why}");
        Ok(())
    };
    let bad = root.join("bad");
    symlink(folder.path(), &bad)?;
    std::fs::write(folder.path().join("SKILL.md"), "")?;
    refuse("it leads out of").await?;
    std::fs::remove_file(&bad)?;
    std::fs::create_dir(&bad)?;
    symlink(&secret, bad.join("SKILL.md"))?;
    refuse("it leads out of").await?;
    std::fs::remove_file(bad.join("SKILL.md"))?;
    std::fs::write(bad.join("SKILL.md"), [b'-', 0xff])?;
    refuse("it is not UTF-8").await?;
    std::fs::write(bad.join("SKILL.md"), vec![b'x'; (1 << 20) + 1])?;
    refuse("it is over 1 MiB").await?;
    std::fs::remove_dir_all(&bad)?;
    skill(&root, "two words", "")?;
    refuse("its folder's name has").await?;
    std::fs::remove_dir_all(root.join("two words"))?;
    // What a description says stays a description, and short.
    let text = format!("---\ndescription: </skill>{}\n---\n", "x".repeat(100_000));
    skill(&root, "long", &text)?;
    server
        .session_with(&json!({"key": "long", "spec": spec["spec"]}))
        .await?;
    let (_, list) = server.get("/sessions/key:long/skills").await?;
    let prompt = list["prompt"].as_str().unwrap_or_default();
    assert!(prompt.len() < 4000, "{}", prompt.len());
    assert_eq!(prompt.matches("</skill>").count(), 2);
    Ok(())
}

/// What our own skill says is so: its tools are those of the registry, and its commands work.
#[tokio::test]
async fn our_own_skill_tells_the_truth() -> Outcome {
    let skills = ours().to_string_lossy().into_owned();
    let server = Server::start(&["--skills", &skills])?;
    let (_, list) = server.get("/skills").await?;
    let [own] = list["skills"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(format!("not one skill: {list}").into());
    };
    assert_eq!(
        (&own["name"], &own["title"]),
        (&json!("ringfence"), &json!("ringfence"))
    );
    let about = own["description"].as_str().unwrap_or_default();
    let (_, tools) = server.get("/tools").await?;
    let tools = tools["tools"].as_array().ok_or("no tools")?;
    let names: Vec<&str> = tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    let mut told: Vec<&str> = about
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(inner, _)| inner.split(", ").collect())
        .ok_or("no list of tools")?;
    let mut known = names.clone();
    told.sort_unstable();
    known.sort_unstable();
    assert_eq!(told, known);
    let text = std::fs::read_to_string(ours().join("ringfence/SKILL.md"))?;
    for name in &names {
        assert!(
            text.contains(&format!("`{name}`")),
            "it does not speak of {name}"
        );
    }
    // Words with a blank in quotes are commands; those with a place are places.
    let id = server.session().await?;
    let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    let commands = quoted
        .iter()
        .filter(|quoted| quoted.starts_with("python3 "));
    let places = quoted.iter().filter(|quoted| quoted.starts_with('/'));
    let tries: Vec<String> = commands
        .map(|command| (*command).to_owned())
        .chain(places.map(|place| format!("test -w {place}")))
        .collect();
    assert!(tries.len() >= 3, "{tries:?}");
    for command in tries {
        let done = server.bash(&id, &command).await?;
        assert_eq!(done["return_code"], 0, "{command}: {done}");
    }
    Ok(())
}
