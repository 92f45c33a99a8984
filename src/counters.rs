//! Counter sets: what steering rules count.

#![forbid(unsafe_code)]

use uverbs_uapi::objects::counters::{create, destroy, read};
use zerocopy::IntoBytes;

use crate::context::Context;
use crate::error::{DestroyError, Error, Result};
use crate::events::{log_failed_drop, settle_destroy};

const READ: &str = "read_counters";

/// A set of counters (ibv_create_counters). Steering rules attach to it and say which value each index counts.
#[derive(Debug)]
pub struct Counters {
    context: Context,
    handle: u32,
    live: bool,
}

impl Context {
    /// Creates a set of counters.
    ///
    /// # Errors
    /// `Unsupported` where the device or the kernel has none; what else the kernel says.
    pub fn create_counters(&self) -> Result<Counters> {
        const VERB: &str = "create_counters";
        let mut request = self.commands().request::<create::Call>();
        request.new_handle(create::HANDLE);
        self.commands().send(VERB, &mut request).map_err(|error| match error.kind() {
            crate::ErrorKind::Unsupported => error.because("the device has no counter sets"),
            _ => error,
        })?;
        let handle = request.created(create::HANDLE).unwrap_or_default();
        Ok(Counters { context: self.clone(), handle, live: true })
    }
}

impl Counters {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Reads the first `values.len()` counters.
    ///
    /// # Errors
    /// EINVAL if nothing is attached, or fewer values; what else the kernel says.
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        let asked = format!("{} values", values.len());
        let mut request = self.context.commands().request::<read::Call>();
        request.handle(read::HANDLE, self.handle);
        request.flags(read::FLAGS, 0u32);
        let stored = request.output_bytes(read::BUFF, values.as_mut_bytes()).map(drop);
        stored.map_err(|error| Error::invalid(READ, error.to_string()))?;
        let sent = self.context.commands().send(READ, &mut request);
        sent.map_err(|error| match error.errno() {
            libc::EINVAL => error
                .asked(asked)
                .because("no steering rule is attached to the set, or it has fewer counters"),
            _ => error.asked(asked),
        })
    }

    /// Destroys it.
    ///
    /// # Errors
    /// EBUSY while rules are attached; what else the kernel says. It comes back unharmed.
    pub fn destroy(mut self) -> std::result::Result<(), DestroyError<Self>> {
        self.send_destroy().map_err(|error| DestroyError::new(self, error))
    }

    fn send_destroy(&mut self) -> Result<()> {
        let commands = self.context.commands();
        let mut request = commands.request::<destroy::Call>();
        request.handle(destroy::HANDLE, self.handle);
        settle_destroy(commands.send("destroy_counters", &mut request))?;
        self.live = false;
        Ok(())
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if self.live {
            if let Err(error) = self.send_destroy() {
                log_failed_drop("counter set", &error);
            }
        }
    }
}
