use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

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

    /// Records some bytes; returns the name of the file that got them.
    fn record(&self, path: &Path, marker: Option<&Path>) -> String {
        let mut recording = Recording::open(path, 3, marker).expect("opened");
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
    let (file, marker) = (scratch.path("file"), scratch.path("marker"));
    fs::write(&file, "an older and longer recording").expect("written");
    assert_eq!(scratch.record(&file, Some(&marker)), "file");
    assert_eq!(fs::read(&file).expect("read"), b"packets");
    assert_eq!(scratch.record(&file, Some(&marker)), scratch.second());
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
    let Some(null) = scratch.make("mknod", "null", &["c", "1", "3"]) else { return };
    let first = Recording::open(&null, 0, None);
    if first.is_err() {
        eprintln!("no devices in this file system");
        return;
    }
    assert_eq!(scratch.record(&null, None), "null");
    assert!(fs::metadata(&null).expect("there").file_type().is_char_device());
}

#[test]
fn a_reader_that_leaves_ends_the_recording() {
    let scratch = Scratch::new("left");
    let fifo = scratch.make("mkfifo", "fifo", &[]).expect("a FIFO");
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    let mut recording = Recording::open(&fifo, 0, None).expect("opened");
    drop(reader);
    let failed = recording.write_all(b"packets");
    assert_eq!(failed.expect_err("no reader").kind(), ErrorKind::BrokenPipe);
}
