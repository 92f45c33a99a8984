//! The commands that query an id.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use uverbs_uapi::cm::QueryOption;
use uverbs_uapi::cm::address::{Query, QueryAddrResp};
use uverbs_uapi::cm::path::{PathRecData, QueryPathResp, QueryRoute, QueryRouteResp};
use zerocopy::IntoBytes;

use super::commands::{Call, errno};
use uverbs_soft_cm::cma::CmaId;

impl Call<'_> {
    pub(super) fn query(&mut self) -> Result<(), Errno> {
        let Query { response, id, option } = self.read()?;
        let id = self.id(id)?;
        match option {
            QueryOption::ADDR => {
                self.need(QueryAddrResp::LENGTHS[1])?;
                self.answer(response, &self.state.cma.query_addr(id).map_err(errno)?)
            }
            QueryOption::GID => {
                self.need(QueryAddrResp::LENGTHS[1])?;
                self.answer(response, &self.state.cma.query_gid(id).map_err(errno)?)
            }
            QueryOption::PATH => self.query_path(response, id),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Counts all paths. A path is written only if the buffer is longer than the response needs,
    /// which is the kernel's test (`ucma_query_path`).
    fn query_path(&self, response: u64, id: CmaId) -> Result<(), Errno> {
        self.need(size_of::<QueryPathResp>())?;
        let path = self.state.cma.query_path(id).map_err(errno)?;
        let length = self.output - size_of::<QueryPathResp>();
        let head = QueryPathResp { num_paths: path.is_some().into(), reserved: 0 };
        let path = path.filter(|_| length > size_of::<PathRecData>());
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend(path.iter().flat_map(|path| path.as_bytes()));
        self.memory.write(response, &bytes)
    }

    pub(super) fn query_route(&mut self) -> Result<(), Errno> {
        self.need(QueryRouteResp::LENGTHS[1])?;
        let QueryRoute { response, id, .. } = self.read()?;
        let id = self.id(id)?;
        self.answer(response, &self.state.cma.query_route(id).map_err(errno)?)
    }
}
