//! Random WQEs.

use arbitrary::Unstructured;
use proptest::prelude::*;
use uverbs_mlx5_inspect::{Service, Wqe};

use crate::generate::legal_wqe;

pub(crate) fn service() -> impl Strategy<Value = Service> {
    prop::sample::select(Service::ALL.as_slice())
}

/// A legal WQE, with the service of its queue.
pub(crate) fn wqe() -> impl Strategy<Value = (Service, Wqe)> {
    (service(), prop::collection::vec(any::<u8>(), 0..1500)).prop_map(|(service, bytes)| {
        // After the last byte, `arbitrary` continues with zeros.
        let wqe = legal_wqe(&mut Unstructured::new(&bytes), service).expect("never too few bytes");
        (service, wqe)
    })
}
