//! The files that a run writes beside its output: recordings and traces.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use crate::process::{self, Ended, Running, Scratch};
use crate::run::is_installed;

/// How a recording begins: times in nanoseconds.
const MAGIC: [u8; 4] = 0xa1b2_3c4d_u32.to_le_bytes();

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// `uverbs run OPTION FILE -- PROGRAM`.
fn run(option: &str, file: &Path, program: &[&str]) -> Ended {
    process::build_library();
    let option = format!("{option}={}", text(file));
    process::run(&[&["run", &option, "--"], program].concat())
}

/// A FIFO, and its reader, which does not wait.
fn fifo(scratch: &Scratch) -> (PathBuf, File) {
    let fifo = scratch.path().join("fifo");
    if !fifo.exists() {
        let made = Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("mkfifo").success());
    }
    let mut reader = File::options();
    let reader = reader.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&fifo);
    (fifo, reader.expect("a reader"))
}

/// A device node with major number 1, if this user can make one here.
fn node(scratch: &Scratch, name: &str, minor: &str) -> Option<PathBuf> {
    let node = scratch.path().join(name);
    let made = Command::new("mknod").arg(&node).args(["c", "1", minor]).output().expect("mknod");
    let usable = made.status.success() && File::options().write(true).open(&node).is_ok();
    if !usable {
        eprintln!("skipped: no device nodes here");
    }
    usable.then_some(node)
}

fn is_recording(path: &Path) -> bool {
    fs::read(path).expect("a recording").starts_with(&MAGIC)
}

#[test]
fn a_run_that_writes_nothing_keeps_the_file() {
    let scratch = Scratch::new("written-kept");
    let file = scratch.file("old", b"old");
    process::build_library();
    for option in ["--pcap", "--trace"] {
        run(option, &file, &["no-such-program"]).failure(2, "no program");
        let option = format!("{option}={}", text(&file));
        let refused = process::run(&["run", &option, "--faults", "7,drop=200", "--", "true"]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains("drop=200 is more than 100 %"), "{refused:?}");
        assert_eq!(fs::read(&file).expect("kept"), b"old", "{option}");
    }
    run("--pcap", &file, &["true"]).success();
    assert_eq!(fs::read(&file).expect("kept"), b"old");
    run("--trace", &file, &["true"]).success();
    assert_eq!(fs::read(&file).expect("a trace"), b"");
    assert_eq!(process::names(scratch.path()), ["old"]);
}

#[test]
fn files_are_written_through_links() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("written-links");
    let [link, target] = ["link", "target"].map(|name| scratch.path().join(name));
    symlink(&target, &link).expect("a link");
    for old in [None, Some("an older recording, longer than a file without packets")] {
        if let Some(old) = old {
            fs::write(&target, old).expect("written");
        }
        run("--pcap", &link, &["ibv_devinfo"]).success();
        assert!(link.is_symlink() && is_recording(&target));
        assert_eq!(process::names(scratch.path()), ["link", "target"]);
    }
    run("--trace", &link, &["ibv_devinfo"]).success();
    assert!(link.is_symlink());
    assert!(fs::read_to_string(&target).expect("a trace").contains("GET_CONTEXT"));
}

#[test]
fn files_are_written_through_fifos() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("written-fifos");
    let (path, reader) = fifo(&scratch);
    drop(reader);
    let unread = run("--pcap", &path, &["ibv_devinfo"]);
    assert!(unread.stderr.contains("no program reads the FIFO"), "{unread:?}");
    let unread = run("--trace", &path, &["touch", text(&scratch.path().join("touched"))]);
    unread.failure(1, "no program reads the FIFO");
    for (option, begins) in [("--pcap", &MAGIC[..]), ("--trace", b"[")] {
        // What is written fits into the FIFO.
        let (path, mut reader) = fifo(&scratch);
        run(option, &path, &["ibv_devinfo"]).success();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("read");
        assert!(read.starts_with(begins), "{option}: {read:?}");
        assert!(fs::symlink_metadata(&path).expect("there").file_type().is_fifo());
        assert_eq!(process::names(scratch.path()), ["fifo"]);
    }
}

/// The program that traces replaces itself: the trace of the next one follows.
#[test]
fn a_fifo_has_no_end_between_two_programs() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    process::build_library();
    let scratch = Scratch::new("written-exec");
    for (option, has) in [("--trace", &b"GET_CONTEXT"[..]), ("--pcap", &MAGIC[..])] {
        let (path, polled) = fifo(&scratch);
        // It leaves at the end of the file; the test's own reader is there before it.
        let reader = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn();
        let reader = reader.expect("cat");
        let option = format!("{option}={}", text(&path));
        // Time for the reader to see an end.
        let script = "sleep 0.2; exec env ibv_devinfo";
        let mut command = process::uverbs(&["run", &option, "--", "sh", "-c", script]);
        let ended = Running::start(&mut command).end().success();
        drop(polled);
        let read = reader.wait_with_output().expect("read").stdout;
        assert!(read.windows(has.len()).any(|bytes| bytes == has), "{option}: {ended:?}");
        assert_eq!(process::names(scratch.path()), ["fifo"]);
    }
}

/// Two runs at the same time: each recording is whole, under a name of its own.
#[test]
fn two_runs_do_not_write_to_the_same_recording() {
    if !is_installed("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    process::build_library();
    let scratch = Scratch::new("written-twice");
    let file = scratch.path().join("file");
    let option = format!("--pcap={}", text(&file));
    let watch = || {
        let mut command =
            process::uverbs(&["run", &option, "--", "stdbuf", "-oL", "ibv_asyncwatch"]);
        let mut running = Running::start(&mut command);
        running.line("mlx5_0: ");
        running
    };
    let both = [watch(), watch()];
    let names = process::names(scratch.path());
    assert!(names.len() == 2 && names[0] == "file" && names[1].ends_with("-0"), "{names:?}");
    drop(both);
    assert!(names.iter().all(|name| is_recording(&scratch.path().join(name))));
}

/// A process that outlives its run, which has made the run's directory anew.
#[test]
fn a_process_that_outlives_its_run_empties_nothing() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    process::build_library();
    let scratch = Scratch::new("written-outlived");
    let [pcap, trace, done] = ["pcap", "trace", "done"].map(|name| scratch.path().join(name));
    let later = format!(
        "while [ -e \"$UVERBS_RUN_SYSFS\" ]; do sleep 0.05; done; ls /sys/class/infiniband; \
         ibv_devinfo; : > {}",
        text(&done)
    );
    let script = format!("ibv_devinfo > /dev/null; ( {later} ) > /dev/null 2>&1 &");
    let options = [format!("--pcap={}", text(&pcap)), format!("--trace={}", text(&trace))];
    process::run(&["run", &options[0], &options[1], "--", "sh", "-c", &script]).success();
    let before = fs::read_to_string(&trace).expect("a trace");
    fs::write(&pcap, "a mark").expect("written");
    let began = Instant::now();
    while !done.exists() {
        assert!(began.elapsed() < process::PATIENCE, "it still waits");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(fs::read_to_string(&trace).expect("a trace").starts_with(&before));
    assert_eq!(fs::read(&pcap).expect("kept"), b"a mark");
}

/// A node like /dev/null, which only root can make.
#[test]
fn devices_are_written_through() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("written-devices");
    let Some(node) = node(&scratch, "null", "3") else { return };
    for option in ["--pcap", "--trace"] {
        run(option, &node, &["sh", "-c", "ibv_devinfo; ibv_devinfo"]).success();
        assert!(fs::symlink_metadata(&node).expect("there").file_type().is_char_device());
        assert_eq!(process::names(scratch.path()), ["null"]);
    }
}

/// The reader of a FIFO leaves: the rest cannot be written, as on a full disk.
#[test]
fn a_recording_that_cannot_be_written_to_its_end_is_named() {
    let scratch = Scratch::new("written-left");
    let (fifo, mut reader) = fifo(&scratch);
    let mut command = process::uverbs(&["pingpong", "--iters", "3000"]);
    let mut running = Running::start(command.env("UVERBS_SOFT_PCAP", &fifo));
    running.line("test ");
    while reader.read(&mut [0; 24]).is_err() {}
    drop(reader);
    let ended = running.end().success();
    let said = format!("uverbs: the recording {} is incomplete: Broken pipe", text(&fifo));
    assert_eq!(ended.stderr.matches(&said).count(), 1, "{ended:?}");
}

/// On a node like /dev/full, which only root can make.
#[test]
fn a_full_disk_is_named() {
    if !is_installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let scratch = Scratch::new("written-full");
    let Some(full) = node(&scratch, "full", "7") else { return };
    let traced = run("--trace", &full, &["ibv_devinfo", "-v"]).success();
    let said = format!("uverbs: the trace {} is incomplete: No space left on device", text(&full));
    assert_eq!(traced.stderr.matches(&said).count(), 1, "{traced:?}");
    let recorded = run("--pcap", &full, &["ibv_devinfo"]);
    assert!(recorded.stderr.contains("cannot record"), "{recorded:?}");
    assert!(recorded.stderr.contains("No space left on device"), "{recorded:?}");
}
