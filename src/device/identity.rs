//! How the objects of a context are named: by context, event id and kernel handle.

/// The methods by which handles of objects with events say what they are. `$object` is the field
/// with the object: its context, its registration for events, and the kernel's handle.
macro_rules! identity_methods {
    ($object:tt) => {
        /// The context it belongs to.
        pub fn context(&self) -> &$crate::device::context::Context {
            &self.$object.context
        }

        /// The id by which events name it.
        pub fn id(&self) -> $crate::host::events::ObjectId {
            self.$object.events.id()
        }

        /// The kernel's handle.
        pub fn kernel_handle(&self) -> u32 {
            self.$object.handle
        }
    };
}
pub(crate) use identity_methods;
