//! Every option of a container takes effect: seen from inside, or at the engine.

use ringfence_docker_tests::{
    IMAGE, Outcome, Removed, docker_ok, inspect, label, serve, session, session_of, shell, unique,
};
use serde_json::{Value, json};

#[tokio::test]
async fn skills_are_there_and_cannot_be_changed() -> Outcome {
    let folder = tempfile::tempdir()?;
    let skill = folder.path().join("all/pdf");
    std::fs::create_dir_all(&skill)?;
    std::fs::write(skill.join("SKILL.md"), "---\nname: PDF\n---\nRead it.\n")?;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "of the host")?;
    std::os::unix::fs::symlink(&secret, skill.join("link"))?;
    let all = folder.path().join("all").to_string_lossy().into_owned();
    let server = serve(&["--skills", &all])?;
    let id = session_of(&server, &json!({})).await?;
    let read = "tail -n1 /sandbox/skills/pdf/SKILL.md";
    assert_eq!(shell(&server, &id, read).await?, "Read it.");
    for command in [
        "touch /sandbox/skills/pdf/new",
        "rm /sandbox/skills/pdf/SKILL.md",
        "cat /sandbox/skills/pdf/link",
    ] {
        let done = server.bash(&id, command).await?;
        assert_ne!(done["return_code"], 0, "{command}: {done}");
    }
    // The controls: all of that can be done outside.
    assert_eq!(std::fs::read_to_string(skill.join("link"))?, "of the host");
    std::fs::write(skill.join("new"), "")?;
    let (_, list) = server.get(&format!("/sessions/{id}/skills")).await?;
    assert_eq!(list["skills"][0]["title"], "PDF", "{list}");
    Ok(())
}

#[tokio::test]
async fn limits_and_places() -> Outcome {
    let server = serve(&[])?;
    let id = session_of(
        &server,
        &json!({
            "env": {"COLOUR": "blue"},
            "labels": {"team": "blue"},
            "limits": {"memory": "200m", "cpus": 0.5, "pids": 77},
            "container": {
                "user": "2000:3000",
                "workdir": "/work/here",
                "read_only": true,
                "shm_size": "32m",
                "ulimits": {"nproc": {"soft": 50, "hard": 60}},
                "tmpfs": {"/scratch": "size=3m"},
                "extra_hosts": {"db.internal": "10.1.2.3"},
                "dns": ["10.9.8.7"],
            },
        }),
    )
    .await?;
    let inside = async |command: &str| shell(&server, &id, command).await;
    assert_eq!(inside("echo $COLOUR").await?, "blue");
    assert_eq!(inside("id -u; id -g").await?, "2000\n3000");
    assert_eq!(
        inside("pwd; touch file && echo written").await?,
        "/work/here\nwritten"
    );
    assert!(
        inside("touch /usr/x 2>&1; true")
            .await?
            .contains("Read-only")
    );
    assert_eq!(
        inside("df -k --output=size /dev/shm | tail -1")
            .await?
            .trim(),
        "32768"
    );
    assert_eq!(
        inside("df -k --output=size /scratch | tail -1")
            .await?
            .trim(),
        "3072"
    );
    assert_eq!(inside("ulimit -Su; ulimit -Hu").await?, "50\n60");
    assert!(
        inside("cat /etc/hosts")
            .await?
            .contains("10.1.2.3\tdb.internal")
    );
    assert_eq!(inspect(&id, "HostConfig.Memory")?, 200 << 20);
    assert_eq!(inspect(&id, "HostConfig.MemorySwap")?, 200 << 20);
    assert_eq!(inspect(&id, "HostConfig.NanoCpus")?, 500_000_000);
    assert_eq!(inspect(&id, "HostConfig.PidsLimit")?, 77);
    assert_eq!(inspect(&id, "HostConfig.Dns")?, json!(["10.9.8.7"]));
    assert_eq!(inspect(&id, "Config.Labels")?["team"], "blue");
    Ok(())
}

/// The line of /proc/self/status with this name.
async fn status(server: &ringfence_docker_tests::Server, id: &str, name: &str) -> Outcome<String> {
    let line = shell(server, id, &format!("grep ^{name}: /proc/self/status")).await?;
    Ok(line
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .to_owned())
}

#[tokio::test]
async fn rights_are_none_unless_given() -> Outcome {
    let server = serve(&["--allow", "all"])?;
    let tight = session(&server, &json!({})).await?;
    assert_eq!(status(&server, &tight, "CapBnd").await?, "0000000000000000");
    assert_eq!(status(&server, &tight, "NoNewPrivs").await?, "1");
    assert_eq!(status(&server, &tight, "Seccomp").await?, "2");
    assert_eq!(shell(&server, &tight, "id -u").await?, "1000");
    let given = json!({"cap_add": ["CHOWN"], "seccomp": "unconfined", "no_new_privileges": false});
    let given = session(&server, &given).await?;
    assert_eq!(status(&server, &given, "CapBnd").await?, "0000000000000001");
    assert_eq!(status(&server, &given, "NoNewPrivs").await?, "0");
    assert_eq!(status(&server, &given, "Seccomp").await?, "0");
    // A profile of one's own: all that it names is denied, and all else is not.
    let profile = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["symlink", "symlinkat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}],
    });
    let profiled = json!({"seccomp": profile.to_string()});
    let profiled = session(&server, &profiled).await?;
    let link = "ln -s a b 2>&1; ln -s a b >/dev/null 2>&1 || echo denied; mkdir c && echo made";
    let denied = shell(&server, &profiled, link).await?;
    assert!(
        denied.contains("not implemented") && denied.ends_with("denied\nmade"),
        "{denied}"
    );
    let allowed = shell(&server, &tight, "ln -s a b && mkdir c && echo made").await?;
    assert_eq!(allowed, "made");
    let engine = json!({"defaults": "engine", "cap_drop": ["CHOWN"]});
    let engine = session(&server, &engine).await?;
    // Docker's own fourteen, but for the one.
    assert_eq!(
        status(&server, &engine, "CapEff").await?,
        "00000000a80425fa"
    );
    assert_eq!(status(&server, &engine, "NoNewPrivs").await?, "1");
    assert_eq!(
        shell(&server, &engine, "id -u; touch /usr/x && echo written").await?,
        "0\nwritten"
    );
    match session(&server, &json!({"privileged": true, "user": "root"})).await {
        Ok(all) => {
            let whole = u64::from_str_radix(&status(&server, &all, "CapEff").await?, 16)?;
            assert!(whole > 0xff_ffff_ffff >> 3, "{whole:x}");
            assert_eq!(inspect(&all, "HostConfig.Privileged")?, true);
        }
        // An engine that has not every capability itself can't give them, and was asked to.
        Err(refused) => assert!(
            refused.to_string().contains("unable to apply caps"),
            "{refused}"
        ),
    }
    Ok(())
}

#[tokio::test]
async fn networks_and_ports() -> Outcome {
    let server = serve(&["--allow", "all"])?;
    let interfaces = "cd /sys/class/net && echo *";
    let none = session(&server, &json!({})).await?;
    assert_eq!(shell(&server, &none, interfaces).await?, "lo");
    let name = unique("rf-net-");
    docker_ok(&["network", "create", "--label", "ringfence-test", &name])?;
    let _network = Removed("network", name.clone());
    let named = json!({
        "network": name,
        "ports": [{"container": 8000}],
        "dns": ["10.9.8.7"],
    });
    let named = session(&server, &named).await?;
    assert!(shell(&server, &named, interfaces).await?.contains("eth0"));
    let code = "import socket\nserver = socket.create_server(('', 8000))\nprint('listens')";
    assert_eq!(server.code(&named, code).await?["stdout"], "listens");
    let port = inspect(&named, "NetworkSettings.Ports")?["8000/tcp"][0].clone();
    assert_eq!(port["HostIp"], "127.0.0.1");
    let port = port["HostPort"].as_str().ok_or("no port")?.to_owned();
    std::net::TcpStream::connect(format!("127.0.0.1:{port}"))?;
    let host = session(&server, &json!({"network": "host"})).await?;
    let own = std::fs::read_link("/proc/self/ns/net")?;
    let seen = shell(&server, &host, "readlink /proc/self/ns/net").await?;
    assert_eq!(seen, own.display().to_string());
    for session in [&named, &host] {
        server
            .ask("DELETE", &format!("/sessions/{session}"), None)
            .await?;
    }
    Ok(())
}

/// A server and its client inside, which meet at `localhost`.
const MEETING: &str = r#"
import socket, threading
for family in (socket.AF_INET, socket.AF_INET6):
    server = socket.create_server(("localhost", 0), family=family)
    port = server.getsockname()[1]
    threading.Thread(target=lambda: server.accept()[0].sendall(b"met")).start()
    print(socket.create_connection(("localhost", port)).recv(9).decode())
print(socket.gethostbyname(socket.gethostname()).startswith("127."))
"#;

#[tokio::test]
async fn without_a_network_there_is_localhost() -> Outcome {
    let server = serve(&[])?;
    let id = session(&server, &json!({})).await?;
    let met = server.code(&id, MEETING).await?;
    assert_eq!(met["stdout"], "met\nmet\nTrue", "{met}");
    // The engine has no part in it, which is what a start costs most of.
    assert_eq!(inspect(&id, "NetworkSettings.Networks")?, json!({}));
    assert_eq!(inspect(&id, "HostConfig.NetworkMode")?, "none");
    let change = shell(&server, &id, "echo x >> /etc/hosts").await;
    assert!(change.is_err(), "{change:?}");
    // Unless it has something to do for it.
    let named = json!({"extra_hosts": {"db.internal": "127.0.0.1"}});
    let named = session(&server, &named).await?;
    let code = "import socket; print(socket.gethostbyname('db.internal'), socket.gethostbyname('localhost'))";
    let seen = server.code(&named, code).await?;
    assert_eq!(seen["stdout"], "127.0.0.1 127.0.0.1", "{seen}");
    Ok(())
}

#[tokio::test]
async fn volumes_stay_or_go_as_asked() -> Outcome {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("given"), "from the host")?;
    let allow = format!("{}:ro", folder.path().display());
    let server = serve(&["--allow", "volumes", "--allow-mount", &allow])?;
    let name = unique("rf-vol-");
    let _volume = Removed("volume", name.clone());
    let volumes = json!([{"name": name, "to": "/data"}]);
    let spec = json!({
        "mounts": [{"from": folder.path(), "to": "/given"}],
        "container": {"volumes": volumes, "user": "root"},
    });
    let first = session_of(&server, &spec).await?;
    shell(&server, &first, "echo kept > /data/file").await?;
    assert_eq!(
        shell(&server, &first, "cat /given/given").await?,
        "from the host"
    );
    assert!(
        shell(&server, &first, "touch /given/x 2>&1; true")
            .await?
            .contains("Read-only")
    );
    server
        .ask("DELETE", &format!("/sessions/{first}"), None)
        .await?;
    let options = json!({"volumes": volumes, "remove_volumes": true, "user": "root"});
    let second = session(&server, &options).await?;
    assert_eq!(shell(&server, &second, "cat /data/file").await?, "kept");
    let ours = format!("label=ringfence={}", first.replace('_', "-"));
    assert_eq!(docker_ok(&["volume", "ls", "-q", "--filter", &ours])?, name);
    server
        .ask("DELETE", &format!("/sessions/{second}"), None)
        .await?;
    let left = docker_ok(&["volume", "ls", "-q", "--filter", &format!("name={name}")])?;
    assert_eq!(left, "");
    Ok(())
}

#[tokio::test]
async fn devices_and_runtimes() -> Outcome {
    let server = serve(&["--allow", "devices"])?;
    let devices = json!({"devices": ["/dev/zero:/dev/nought:r"], "user": "root"});
    let id = session(&server, &devices).await?;
    assert_eq!(
        shell(&server, &id, "head -c 3 /dev/nought | wc -c").await?,
        "3"
    );
    let granted = inspect(&id, "HostConfig.Devices")?;
    assert_eq!(granted[0]["CgroupPermissions"], "r");
    // Without a driver for them the engine says so: it was asked.
    let gpus = json!({"spec": {"container": {"gpus": "all"}}});
    let (status, answer) = server.post("/sessions", &gpus).await?;
    assert!(
        status == 201
            || answer
                .to_string()
                .contains("could not select device driver"),
        "{status} {answer}"
    );
    // gVisor has a kernel of its own.
    let own = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let seen = shell(&server, &id, "uname -r").await?;
    assert_eq!(seen, own.trim());
    let id = session(&server, &json!({"runtime": "runsc"})).await?;
    assert_ne!(shell(&server, &id, "uname -r").await?, own.trim());
    assert_eq!(server.code(&id, "print(6 * 7)").await?["stdout"], "42");
    Ok(())
}

#[tokio::test]
async fn any_image_and_any_user() -> Outcome {
    let server = serve(&[])?;
    let own = session(&server, &json!({"image": "ringfence-test/user"})).await?;
    let uid = docker_ok(&["run", "--rm", "ringfence-test/user", "id", "-u"])?;
    assert_ne!(uid, "0");
    assert_eq!(
        shell(&server, &own, "id -u; touch x && echo written").await?,
        format!("{uid}\nwritten")
    );
    // By its name too, also where the work folder is a volume, which belongs to root at first.
    let spec = json!({"workspace": "disk", "container": {"user": "daemon"}});
    let daemon = session_of(&server, &spec).await?;
    assert_eq!(
        shell(&server, &daemon, "id -un; touch x && echo written").await?,
        "daemon\nwritten"
    );
    // No bash and no glibc; then nothing at all.
    let small = session(&server, &json!({"image": "ringfence-test/busybox"})).await?;
    let made = json!({"path": "made"});
    let (status, answer) = server
        .post(&format!("/sessions/{small}/files/mkdir"), &made)
        .await?;
    assert!(status < 300, "{status} {answer}");
    let list = json!({"id": "list", "command": "ls"});
    let (status, answer) = server
        .post(&format!("/sessions/{small}/jobs"), &list)
        .await?;
    assert!(status < 300, "{status} {answer}");
    let job = format!("/sessions/{small}/jobs/list");
    server.get(&format!("{job}/wait")).await?;
    let url = format!("{}{job}/output/stdout", server.url);
    assert_eq!(server.http.get(&url).send().await?.text().await?, "made\n");
    let empty = session(&server, &json!({"image": "ringfence-test/scratch"})).await?;
    let (status, answer) = server
        .post(&format!("/sessions/{empty}/files/mkdir"), &made)
        .await?;
    assert!(status < 300, "{status} {answer}");
    let (status, answer) = server
        .get(&format!("/sessions/{empty}/files/stat?path=made"))
        .await?;
    assert_eq!(status, 200, "{answer}");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_said() -> Outcome {
    let server = serve(&[])?;
    let answer = async |container: Value| {
        let body = json!({"spec": {"container": container}});
        server.post("/sessions", &body).await
    };
    let none = json!({"image": "ringfence-test/no-such-image", "pull": "never"});
    let (status, body) = answer(none).await?;
    assert_eq!(status, 424, "{body}");
    let other = json!({"platform": "linux/arm64", "pull": "never"});
    let (status, body) = answer(other).await?;
    assert_eq!(status, 424, "{body}");
    assert!(body.to_string().contains("linux/amd64"), "{body}");
    let (status, body) = answer(json!({"runtime": "no-such-runtime"})).await?;
    assert!(
        status >= 400 && body.to_string().contains("no-such-runtime"),
        "{status} {body}"
    );
    Ok(())
}

#[tokio::test]
async fn what_reaches_beyond_is_refused_unless_allowed() -> Outcome {
    let server = serve(&[])?;
    for container in [
        json!({"privileged": true}),
        json!({"network": "bridge"}),
        json!({"network": "host"}),
        json!({"network": "container:other"}),
        json!({"devices": ["/dev/zero"]}),
        json!({"gpus": "all"}),
        json!({"cap_add": ["SYS_ADMIN"]}),
        json!({"seccomp": "unconfined"}),
        json!({"no_new_privileges": false}),
        json!({"name": "somebody"}),
        json!({"volumes": [{"name": "somebodys", "to": "/data"}]}),
        json!({"ports": [{"container": 80}]}),
        json!({"daemon": true}),
    ] {
        let body = json!({"spec": {"container": container}});
        let (status, answer) = server.post("/sessions", &body).await?;
        assert_eq!(status, 403, "{container} {answer}");
        assert!(answer.to_string().contains("policy.allow"), "{answer}");
    }
    let mount = json!({"spec": {"mounts": [{"from": "/etc", "to": "/data"}]}});
    assert_eq!(server.post("/sessions", &mount).await?.0, 403);
    // The control: what stays inside needs no leave.
    session(&server, &json!({"cap_add": ["CHOWN"]})).await?;
    Ok(())
}

#[tokio::test]
async fn a_container_that_is_there_is_attached_to_and_stays() -> Outcome {
    let server = serve(&["--allow", "all"])?;
    // Removed after the container, which uses it.
    let volume = unique("rf-there-");
    let _volume = Removed("volume", volume.clone());
    let name = unique("rf-there-");
    let _container = Removed("container", name.clone());
    let command = "echo mine > /tmp/mark; exec sleep 1000";
    let mount = format!("{volume}:/data");
    let run = ["run", "-d", "--name", &name, "-v", &mount, IMAGE];
    docker_ok(&[&run[..], &["sh", "-c", command]].concat())?;
    // What would be removed with one of ours stays too.
    let attached = json!({
        "name": name,
        "workdir": "/tmp",
        "volumes": [{"name": volume, "to": "/data"}],
        "remove_volumes": true,
    });
    let id = session(&server, &attached).await?;
    assert_eq!(shell(&server, &id, "cat mark; touch left").await?, "mine");
    server.code(&id, "x = 41").await?;
    assert_eq!(server.code(&id, "print(x + 1)").await?["stdout"], "42");
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    // Stopped, it is started again.
    docker_ok(&["stop", "-t", "0", &name])?;
    let id = session(&server, &attached).await?;
    assert_eq!(shell(&server, &id, "ls left").await?, "left");
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(
        docker_ok(&["inspect", "--format", "{{.State.Running}}", &name])?,
        "true"
    );
    docker_ok(&["volume", "inspect", &volume])?;
    Ok(())
}

#[tokio::test]
async fn a_name_of_ones_own_goes_unless_it_is_kept() -> Outcome {
    let server = serve(&["--allow", "names"])?;
    let name = unique("rf-own-");
    let _container = Removed("container", name.clone());
    let there = || docker_ok(&["ps", "-aq", "--filter", &format!("name=^/{name}$")]);
    let id = session(&server, &json!({"name": name})).await?;
    assert_ne!(there()?, "");
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(there()?, "");
    let kept = json!({"name": name, "keep": true, "read_only": false});
    let id = session(&server, &kept).await?;
    shell(&server, &id, "echo kept > file").await?;
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_ne!(there()?, "");
    let (_, all) = server.get("/sessions").await?;
    assert_eq!(all["sessions"], json!([]));
    let id = session(&server, &kept).await?;
    assert_eq!(shell(&server, &id, "cat file").await?, "kept");
    assert_eq!(docker_ok(&["ps", "-q", "--filter", &label(&id)])?, "");
    Ok(())
}
