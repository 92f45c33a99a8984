//! Common methods of a context's objects: context, event id and kernel handle.

/// Defines these methods for objects with events. `$object` is the field with `context`, `events`
/// and `handle`.
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
