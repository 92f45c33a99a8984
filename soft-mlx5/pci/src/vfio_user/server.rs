//! Serves one client.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::connection::{Connection, MAX_DESCRIPTORS};
use super::message::{Message, command, words};
use super::{DmaRegion, Function, Region};

/// Region numbers of a PCI device, from `linux/vfio.h`.
const BAR0_REGION: u32 = 0;
const CONFIG_REGION: u32 = 7;
const REGIONS: u32 = 9;
/// Interrupt kinds of a PCI device, from `linux/vfio.h`.
const MSIX_INTERRUPTS: u32 = 2;
const INTERRUPT_KINDS: u32 = 5;
/// Bytes of the configuration space of a PCI Express function.
const CONFIG_SIZE: u64 = 4096;
/// Most messages handled between two steps of the function.
const BATCH: usize = 64;
/// Longest wait before the stop flag is checked again.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Serves `function` to the client of `stream` until the client leaves or `stop` is set.
///
/// # Errors
/// Socket errors, and a client that does not speak the protocol. Invalid requests are answered with
/// an errno.
pub fn serve(
    stream: UnixStream,
    function: &mut impl Function,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut connection = Connection::new(stream);
    while !stop.load(Ordering::Relaxed) {
        let wait = next_wait(function);
        let mut others = Vec::new();
        function.poll_fds(&mut others);
        if connection.wait(&others, wait)? && !connection.receive()? {
            return Ok(());
        }
        let mut handled = 0;
        while let Some(message) = connection.next()? {
            answer(&mut connection, function, message)?;
            handled += 1;
            if handled % BATCH == 0 {
                function.step();
            }
        }
    }
    Ok(())
}

fn next_wait(function: &mut impl Function) -> Duration {
    function.step().map_or(STOP_CHECK, |wait| wait.min(STOP_CHECK))
}

fn answer(
    connection: &mut Connection,
    function: &mut impl Function,
    mut message: Message,
) -> io::Result<()> {
    let result = handle(function, &mut message);
    if let Err(errno) = result {
        tracing::warn!(command = message.command, errno, "vfio-user request refused");
    }
    if !message.wants_reply() {
        return Ok(());
    }
    if message.command == command::REGION_WRITE {
        // Step before the reply, so that a client that waits for its stores to be executed (QEMU's
        // `x-no-posted-writes`) sees their effect.
        function.step();
    }
    match result {
        Ok(body) => connection.reply(&message, 0, &body),
        Err(errno) => connection.reply(&message, errno as u32, &[]),
    }
}

/// The reply's body, or an errno.
fn handle(function: &mut impl Function, message: &mut Message) -> Result<Vec<u8>, i32> {
    match message.command {
        command::VERSION => version(message),
        command::DMA_MAP => dma_map(function, message),
        command::DMA_UNMAP => dma_unmap(function, message),
        command::DEVICE_GET_INFO => Ok(words(&[16, DEVICE_FLAGS, REGIONS, INTERRUPT_KINDS])),
        command::DEVICE_GET_REGION_INFO => region_info(function, message),
        command::DEVICE_GET_IRQ_INFO => interrupt_info(function, message),
        command::DEVICE_SET_IRQS => set_interrupts(function, message),
        command::REGION_READ => region_read(function, message),
        command::REGION_WRITE => region_write(function, message),
        command::REGION_WRITE_MULTI => region_write_multiple(function, message),
        command::DEVICE_RESET => {
            function.reset();
            Ok(Vec::new())
        }
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// A PCI device that can be reset.
const DEVICE_FLAGS: u32 = 1 | 2;

fn short<T>(value: Option<T>) -> Result<T, i32> {
    value.ok_or(libc::EINVAL)
}

/// QEMU 11.1 sends version 0.0 and accepts nothing else in return.
fn version(message: &Message) -> Result<Vec<u8>, i32> {
    let major = short(message.u32(0))? & 0xffff;
    if major != 0 {
        return Err(libc::ENOTSUP);
    }
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{MAX_DESCRIPTORS},"max_data_xfer_size":1048576,"pgsizes":4096,"write_multiple":true}}}}"#
    );
    let mut body = vec![0; 4];
    body.extend_from_slice(capabilities.as_bytes());
    body.push(0);
    Ok(body)
}

fn dma_map(function: &mut impl Function, message: &mut Message) -> Result<Vec<u8>, i32> {
    let flags = short(message.u32(4))?;
    let region = DmaRegion {
        offset: short(message.u64(8))?,
        address: short(message.u64(16))?,
        size: short(message.u64(24))?,
        writable: flags & 2 != 0,
    };
    function.dma_map(&region, message.descriptors.pop()).map_err(errno)?;
    Ok(Vec::new())
}

fn dma_unmap(function: &mut impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    let (address, size) = (short(message.u64(8))?, short(message.u64(16))?);
    function.dma_unmap(address, size).map_err(errno)?;
    Ok(message.body.clone())
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

fn region_info(function: &impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    let index = short(message.u32(8))?;
    let size = match index {
        BAR0_REGION => function.bar0_size(),
        CONFIG_REGION => CONFIG_SIZE,
        _ if index < REGIONS => 0,
        _ => return Err(libc::EINVAL),
    };
    let read_write = if size == 0 { 0 } else { 3 };
    let mut body = words(&[32, read_write, index, 0]);
    body.extend_from_slice(&size.to_le_bytes());
    body.extend_from_slice(&0u64.to_le_bytes());
    Ok(body)
}

fn interrupt_info(function: &impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    const EVENTFD: u32 = 1;
    const NORESIZE: u32 = 8;
    let index = short(message.u32(8))?;
    match index {
        MSIX_INTERRUPTS => Ok(words(&[16, EVENTFD | NORESIZE, index, function.vectors()])),
        _ if index < INTERRUPT_KINDS => Ok(words(&[16, 0, index, 0])),
        _ => Err(libc::EINVAL),
    }
}

fn set_interrupts(function: &mut impl Function, message: &mut Message) -> Result<Vec<u8>, i32> {
    const DATA_NONE: u32 = 1;
    const DATA_EVENTFD: u32 = 4;
    const ACTION_TRIGGER: u32 = 32;
    let (flags, index) = (short(message.u32(4))?, short(message.u32(8))?);
    let (start, count) = (short(message.u32(12))?, short(message.u32(16))?);
    let vectors = function.vectors();
    let end = short(start.checked_add(count))?;
    if index != MSIX_INTERRUPTS || flags & ACTION_TRIGGER == 0 || end > vectors {
        return Err(libc::EINVAL);
    }
    if flags & DATA_EVENTFD != 0 {
        let mut descriptors = std::mem::take(&mut message.descriptors).into_iter();
        (start..end).for_each(|vector| function.set_vector(vector, descriptors.next()));
    } else if flags & DATA_NONE != 0 && count == 0 {
        (0..vectors).for_each(|vector| function.set_vector(vector, None));
    } else {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(Vec::new())
}

fn region(index: u32) -> Result<Region, i32> {
    match index {
        BAR0_REGION => Ok(Region::Bar0),
        CONFIG_REGION => Ok(Region::Config),
        _ => Err(libc::EINVAL),
    }
}

fn region_read(function: &mut impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    let (offset, count) = (short(message.u64(0))?, short(message.u32(12))? as usize);
    let region = region(short(message.u32(8))?)?;
    if count > CONFIG_SIZE as usize {
        return Err(libc::EINVAL);
    }
    let mut body = message.body[..16].to_vec();
    body.resize(16 + count, 0);
    function.read(region, offset, &mut body[16..]);
    Ok(body)
}

fn region_write(function: &mut impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    let (offset, count) = (short(message.u64(0))?, short(message.u32(12))? as usize);
    let region = region(short(message.u32(8))?)?;
    let data = short(message.body.get(16..16 + count))?;
    function.write(region, offset, data);
    Ok(message.body[..16].to_vec())
}

/// Several small posted stores in one message: a count, then {offset, region, bytes, eight bytes of
/// data} for each. If the message does not contain all of them, none is executed.
fn region_write_multiple(function: &mut impl Function, message: &Message) -> Result<Vec<u8>, i32> {
    const ENTRY: usize = 24;
    let count = short(message.u64(0))?;
    if count > (message.body.len().saturating_sub(8) / ENTRY) as u64 {
        return Err(libc::EINVAL);
    }
    for base in (8..).step_by(ENTRY).take(count as usize) {
        let (offset, bytes) = (short(message.u64(base))?, short(message.u32(base + 12))? as usize);
        let region = region(short(message.u32(base + 8))?)?;
        let data = short(message.body.get(base + 16..base + ENTRY))?;
        function.write(region, offset, short(data.get(..bytes))?);
    }
    Ok(count.to_le_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// Records the stores that reach it.
    #[derive(Default)]
    struct Stores(Vec<(u64, Vec<u8>)>);

    impl Function for Stores {
        fn bar0_size(&self) -> u64 {
            0
        }
        fn vectors(&self) -> u32 {
            0
        }
        fn read(&mut self, _: Region, _: u64, _: &mut [u8]) {}
        fn write(&mut self, _: Region, offset: u64, data: &[u8]) {
            self.0.push((offset, data.to_vec()));
        }
        fn dma_map(&mut self, _: &DmaRegion, _: Option<OwnedFd>) -> io::Result<()> {
            Ok(())
        }
        fn dma_unmap(&mut self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn set_vector(&mut self, _: u32, _: Option<OwnedFd>) {}
        fn reset(&mut self) {}
        fn step(&mut self) -> Option<Duration> {
            None
        }
    }

    /// A message that announces `count` stores, with one of `bytes` bytes at each of `offsets`.
    fn stores(count: u64, bytes: u32, offsets: &[u64]) -> Message {
        let mut body = count.to_le_bytes().to_vec();
        for offset in offsets {
            body.extend(offset.to_le_bytes());
            body.extend(words(&[BAR0_REGION, bytes, 7, 0]));
        }
        let (command, flags) = (command::REGION_WRITE_MULTI, 0);
        Message { id: 1, command, flags, body, descriptors: Vec::new() }
    }

    #[test]
    fn several_stores_are_done_in_order() {
        let mut function = Stores::default();
        let reply = region_write_multiple(&mut function, &stores(2, 4, &[16, 32]));
        assert_eq!(reply, Ok(2u64.to_le_bytes().to_vec()));
        assert_eq!(function.0, [(16, vec![7, 0, 0, 0]), (32, vec![7, 0, 0, 0])]);
    }

    #[test]
    fn stores_that_a_message_does_not_have_are_refused() {
        for count in [3, u64::MAX] {
            let mut function = Stores::default();
            let reply = region_write_multiple(&mut function, &stores(count, 4, &[16, 32]));
            assert_eq!((reply, function.0.len()), (Err(libc::EINVAL), 0));
        }
    }

    #[test]
    fn a_store_of_more_bytes_than_an_entry_has_is_refused() {
        let mut function = Stores::default();
        let reply = region_write_multiple(&mut function, &stores(1, 9, &[16]));
        assert_eq!((reply, function.0.len()), (Err(libc::EINVAL), 0));
    }
}
