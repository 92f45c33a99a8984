use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

const OLD: &[u8] = b"an older and longer recording";

/// A directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uverbs-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn make(&self, tool: &str, name: &str, rest: &[&str]) -> Option<PathBuf> {
        let path = self.path(name);
        let made = Command::new(tool).arg(&path).args(rest).output().expect("a tool");
        made.status.success().then_some(path)
    }

    /// Records some bytes; returns the name of the file.
    fn record(&self, path: &Path, token: Option<&Path>) -> String {
        let (mut recording, start) = Recording::open(path, 3, token).expect("opened");
        start.begin().expect("begun");
        recording.write_all(b"packets").expect("written");
        let name = recording.path.file_name().expect("a name");
        name.to_string_lossy().into_owned()
    }

    fn second(&self) -> String {
        format!("file.{}-3", std::process::id())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_first_device_of_a_run_replaces_a_recording() {
    let scratch = Scratch::new("replaced");
    let (file, token) = (scratch.path("file"), scratch.path("token"));
    fs::write(&file, OLD).expect("written");
    fs::write(&token, "").expect("written");
    assert_eq!(scratch.record(&file, Some(&token)), "file");
    assert_eq!(fs::read(&file).expect("read"), b"packets");
    assert_eq!(scratch.record(&file, Some(&token)), scratch.second());
    assert!(!token.exists());
}

/// Two runs that record to the same file at the same time.
#[test]
fn a_recording_of_another_run_is_not_replaced() {
    let scratch = Scratch::new("at-once");
    let (file, tokens) = (scratch.path("file"), ["one", "other"].map(|name| scratch.path(name)));
    tokens.iter().for_each(|token| fs::write(token, "").expect("written"));
    let (mut first, start) = Recording::open(&file, 0, Some(&tokens[0])).expect("opened");
    start.begin().expect("begun");
    first.write_all(b"the first run's").expect("written");
    assert_eq!(scratch.record(&file, Some(&tokens[1])), scratch.second());
    drop(first);
    assert_eq!(scratch.record(&file, Some(&tokens[1])), scratch.second(), "it has had its turn");
    assert_eq!(fs::read(&file).expect("read"), b"the first run's");
}

/// The device cannot be created after its recording was opened.
#[test]
fn a_recording_that_does_not_begin_leaves_all_as_it_was() {
    let scratch = Scratch::new("unbegun");
    let (file, token) = (scratch.path("file"), scratch.path("token"));
    fs::write(&file, OLD).expect("written");
    fs::write(&token, "").expect("written");
    let (mut recording, start) = Recording::open(&file, 0, Some(&token)).expect("opened");
    assert!(!token.exists());
    recording.write_all(b"header").expect("held");
    drop((recording, start));
    assert_eq!(fs::read(&file).expect("read"), OLD);
    assert_eq!(scratch.record(&file, Some(&token)), "file");
}

#[test]
fn a_token_is_given_back_if_the_file_cannot_be_opened() {
    let scratch = Scratch::new("unopened");
    let token = scratch.path("token");
    fs::write(&token, "").expect("written");
    Recording::open(&scratch.path("no/file"), 0, Some(&token)).expect_err("no directory");
    assert!(token.exists());
    fs::remove_file(&token).expect("removed");
    assert!(!is_first(&token), "a directory that was made anew");
}

/// Root may write to all files, but not to a program that runs.
#[test]
fn a_recording_that_may_not_be_written_is_kept() {
    let scratch = Scratch::new("running");
    let file = scratch.path("file");
    symlink(std::env::current_exe().expect("this program"), &file).expect("a link");
    assert!(OpenOptions::new().write(true).open(&file).is_err());
    assert_eq!(scratch.record(&file, None), scratch.second());
}

#[test]
fn without_a_run_a_recording_is_kept() {
    let scratch = Scratch::new("kept");
    let file = scratch.path("file");
    fs::write(&file, "").expect("written");
    let first = Recording::open(&file, 0, None).expect("opened");
    assert_eq!(scratch.record(&file, None), scratch.second(), "another device has it");
    drop(first);
    assert_eq!(scratch.record(&file, None), "file");
    assert_eq!(scratch.record(&file, None), scratch.second(), "it holds a recording");
}

#[test]
fn links_fifos_and_devices_are_written_through() {
    let scratch = Scratch::new("through");
    let (link, target) = (scratch.path("file"), scratch.path("target"));
    symlink(&target, &link).expect("a link");
    assert_eq!(scratch.record(&link, None), "file");
    assert_eq!(fs::read(&target).expect("read"), b"packets");

    let fifo = scratch.make("mkfifo", "fifo", &[]).expect("a FIFO");
    let refused = Recording::open(&fifo, 0, None).expect_err("no reader").to_string();
    assert!(refused.contains("no program reads the FIFO"), "{refused}");
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    let mut reader = reader.expect("a reader");
    assert_eq!(scratch.record(&fifo, None), "fifo");
    let mut read = Vec::new();
    io::Read::read_to_end(&mut reader, &mut read).expect("read");
    assert_eq!(read, b"packets");

    // Needs root.
    let null = scratch.make("mknod", "null", &["c", "1", "3"]);
    let Some((null, _first)) =
        null.and_then(|null| Recording::open(&null, 0, None).ok().map(|first| (null, first)))
    else {
        return eprintln!("skipped: no device nodes here");
    };
    assert_eq!(scratch.record(&null, None), "null");
    assert!(fs::metadata(&null).expect("there").file_type().is_char_device());
}

#[test]
fn a_reader_that_leaves_ends_the_recording() {
    let scratch = Scratch::new("left");
    let fifo = scratch.make("mkfifo", "fifo", &[]).expect("a FIFO");
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    let (mut recording, start) = Recording::open(&fifo, 0, None).expect("opened");
    start.begin().expect("begun");
    drop(reader);
    let failed = recording.write_all(b"packets");
    assert_eq!(failed.expect_err("no reader").kind(), ErrorKind::BrokenPipe);
}
