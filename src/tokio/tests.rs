use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe;
use tokio::time::timeout;

use super::*;

/// Time limit of a wait in a test.
const PATIENCE: Duration = Duration::from_secs(60);

fn has_error(file: &OwnedFd) -> Result<()> {
    let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    if poll(&mut polled, PollTimeout::ZERO).unwrap() == 0 {
        return Err(Error::io("poll", &io::ErrorKind::WouldBlock.into()));
    }
    assert_eq!(polled[0].revents(), Some(PollFlags::POLLERR));
    Ok(())
}

/// The write end of a pipe whose read end is closed has only POLLERR, like the kernel's event files
/// of a removed device.
#[tokio::test]
async fn an_error_of_the_file_ends_a_wait() {
    let (reader, writer) = pipe().unwrap();
    let file = watch(writer).unwrap();
    let waiting = timeout(PATIENCE, take(&file, has_error));
    let (waited, ()) = tokio::join!(waiting, async { drop(reader) });
    waited.expect("the wait ends").unwrap();
}

#[tokio::test]
async fn an_error_of_the_file_makes_it_readable() {
    let (reader, writer) = pipe().unwrap();
    let file = AsyncFile::new(writer).unwrap();
    let waiting = timeout(PATIENCE, file.readable());
    let (waited, ()) = tokio::join!(waiting, async { drop(reader) });
    waited.expect("the wait ends").unwrap().clear();
}

#[tokio::test]
async fn an_error_of_the_file_wakes_a_task_that_polls_it() {
    let (reader, writer) = pipe().unwrap();
    let file = AsyncFile::new(writer).unwrap();
    let polling = timeout(PATIENCE, std::future::poll_fn(|task| file.poll_readable(task)));
    let (waited, ()) = tokio::join!(polling, async { drop(reader) });
    waited.expect("the wait ends").unwrap().clear();
}
