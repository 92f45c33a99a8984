#[path = "../../../tests/common/child.rs"]
#[allow(clippy::duplicate_mod, reason = "each test module has its own")]
mod child;

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::host::channel::Access;
use crate::host::children::FileId;
use crate::host::system::{Call, Mapping};
use child::{Outcome, in_child};

/// A plain file instead of a kernel device.
#[derive(Debug)]
struct Plain(File);

impl Channel for Plain {
    fn ioctl(&self, _: Call<'_>) -> io::Result<()> {
        Err(Errno::ENOTTY.into())
    }

    fn mmap(&self, _: usize, _: Access, _: u64) -> Result<Mapping, Errno> {
        Err(Errno::ENODEV)
    }

    fn attribute(&self, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn at_drop(&self) -> AtDrop {
        AtDrop::EndsUnlessHeld(FileId::of(&self.0).unwrap())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Memory that sets its flag when it is given back.
struct Memory(Arc<AtomicBool>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("uverbs-until-close-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A context that keeps memory, over the file at `path`.
fn keeping(path: &Path) -> (Arc<dyn Channel>, UntilClose, Arc<AtomicBool>) {
    let channel: Arc<dyn Channel> = Arc::new(Plain(File::create(path).unwrap()));
    let until_close = UntilClose::new(&channel);
    let given_back = Arc::new(AtomicBool::new(false));
    let error = Error::os("destroy", Errno::EIO);
    until_close.keep("object", &error, Memory(given_back.clone()));
    (channel, until_close, given_back)
}

/// Closes the context as dropping it does. Returns whether the memory was given back.
fn close(
    (channel, mut until_close, given_back): (Arc<dyn Channel>, UntilClose, Arc<AtomicBool>),
) -> bool {
    until_close.prepare();
    drop(channel);
    drop(until_close);
    given_back.load(Ordering::SeqCst)
}

/// `posix_spawn` of `true`. Its child opens the FIFO for reading before the exec, and so waits
/// until the FIFO is opened for writing. It uses the descriptor number of `other`, and keeps all
/// other descriptors.
fn spawn_waiting(fifo: &Path, other: &File) -> libc::pid_t {
    let path = CString::new(fifo.to_str().unwrap()).unwrap();
    let program = c"/bin/true".as_ptr().cast_mut();
    let (mut child, arguments) = (0, [program, ptr::null_mut()]);
    // SAFETY: C strings and lists that end in null; the actions are made, used and destroyed here.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        let (at, read_only) = (other.as_raw_fd(), libc::O_RDONLY);
        libc::posix_spawn_file_actions_addopen(&raw mut actions, at, path.as_ptr(), read_only, 0);
        let (argv, environment) = (arguments.as_ptr(), [ptr::null_mut()]);
        let spawned = libc::posix_spawn(
            &raw mut child,
            program,
            &raw const actions,
            ptr::null(),
            argv,
            environment.as_ptr(),
        );
        assert_eq!(spawned, 0);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
    child
}

#[test]
fn memory_is_given_back_once_the_file_is_closed() {
    let scratch = Scratch::new("closed");
    let outcome = in_child(|| assert!(close(keeping(&scratch.0.join("file")))));
    assert_eq!(outcome, Outcome::Well);
}

#[test]
fn memory_stays_while_a_child_before_its_exec_holds_the_file() {
    let scratch = Scratch::new("spawn");
    let (file, fifo) = (scratch.0.join("file"), scratch.0.join("fifo"));
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    // In a process of its own: other tests fork.
    let outcome = in_child(|| {
        let context = keeping(&file);
        let id = FileId::of(&File::open(&file).unwrap()).unwrap();
        let spawning = std::thread::spawn({
            let fifo = fifo.clone();
            move || spawn_waiting(&fifo, &File::open("/dev/null").unwrap())
        });
        // Wait until the child exists.
        while !Children::before_close(id).unwrap().may_hold() {
            std::thread::yield_now();
        }
        assert!(!close(context), "given back while a child holds the file");
        drop(File::options().write(true).open(&fifo).unwrap());
        let mut status = 0;
        // SAFETY: waits for the child of this test and stores its status.
        unsafe { libc::waitpid(spawning.join().unwrap(), &raw mut status, 0) };
        assert!(close(keeping(&file)), "children that ended hold nothing");
    });
    assert_eq!(outcome, Outcome::Well);
}

#[test]
fn a_child_that_has_called_exec_before_keeps_nothing() {
    let scratch = Scratch::new("exec");
    let outcome = in_child(|| {
        let context = keeping(&scratch.0.join("file"));
        let mut child = std::process::Command::new("cat");
        child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        // Its answer shows that it runs.
        let mut input = child.stdin.take().unwrap();
        io::Write::write_all(&mut input, b"x").unwrap();
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(close(context));
        drop(input);
        child.wait().unwrap();
    });
    assert_eq!(outcome, Outcome::Well);
}
