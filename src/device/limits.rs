//! All limits of a device, with their names in libibverbs' structures.

use super::context::Context;
use crate::error::Result;

/// The value of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// A number; its unit follows from the name.
    Number(u64),
    /// Names of the flags that are set.
    Flags(Vec<String>),
    /// A bit mask or a word.
    Text(String),
}

/// The list of limits under construction.
struct Limits(Vec<(&'static str, Limit)>);

macro_rules! numbers {
    ($list:ident, $from:expr, $($field:ident),* $(,)?) => {
        $($list.number(stringify!($field), $from.$field);)*
    };
}

impl Limits {
    fn number(&mut self, name: &'static str, value: impl Into<u64>) {
        self.0.push((name, Limit::Number(value.into())));
    }

    /// Flags as `bitflags` prints them.
    fn flags(&mut self, name: &'static str, flags: &impl ToString) {
        let text = flags.to_string();
        let words = text.split(" | ").filter(|word| !word.is_empty()).map(str::to_owned);
        self.0.push((name, Limit::Flags(words.collect())));
    }

    fn text(&mut self, name: &'static str, text: String) {
        self.0.push((name, Limit::Text(text)));
    }
}

impl Context {
    /// All limits of the device, with their names in `struct ibv_device_attr_ex` and `struct
    /// mlx5dv_context`, in the order of `ibv_devinfo -v`: for display and comparison. Programs that
    /// act on a limit use [`DeviceAttributes`](crate::DeviceAttributes).
    ///
    /// # Errors
    /// Errors of the query.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// # let context = uverbs::device("soft")?.open()?;
    /// for (name, value) in context.limits()? {
    ///     println!("{name}: {value:?}");
    /// }
    /// # }
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    pub fn limits(&self) -> Result<Vec<(&'static str, Limit)>> {
        let mut list = Limits(Vec::new());
        self.base(&mut list)?;
        self.extended(&mut list)?;
        self.driver(&mut list)?;
        Ok(list.0)
    }

    fn base(&self, list: &mut Limits) -> Result<()> {
        let attributes = self.attributes()?;
        let base = &attributes.kernel.base;
        numbers!(list, base, max_mr_size, page_size_cap, max_qp, max_qp_wr, max_sge, max_sge_rd);
        numbers!(list, base, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_res_rd_atom);
        numbers!(list, base, max_qp_init_rd_atom);
        list.text("atomic_cap", attributes.atomics().to_string());
        numbers!(list, base, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp);
        numbers!(list, base, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_srq);
        numbers!(list, base, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay);
        Ok(())
    }

    fn extended(&self, list: &mut Limits) -> Result<()> {
        let kernel = &self.attributes()?.kernel;
        list.flags("odp_general_caps", &kernel.odp_caps.general_caps);
        list.flags("rc_odp_caps", &kernel.odp_caps.rc_odp_caps);
        list.flags("uc_odp_caps", &kernel.odp_caps.uc_odp_caps);
        list.flags("ud_odp_caps", &kernel.odp_caps.ud_odp_caps);
        list.flags("xrc_odp_caps", &kernel.xrc_odp_caps);
        list.flags("raw_packet_caps", &kernel.raw_packet_caps);
        list.text("completion_timestamp_mask", format!("{:#018x}", kernel.timestamp_mask));
        list.number("hca_core_clock_khz", kernel.hca_core_clock);
        numbers!(list, kernel, max_wq_type_rq, max_dm_size);
        numbers!(list, kernel.rss_caps, max_rwq_indirection_tables);
        numbers!(list, kernel.rss_caps, max_rwq_indirection_table_size);
        numbers!(list, kernel.tm_caps, max_num_tags, max_ops);
        numbers!(list, kernel.cq_moderation_caps, max_cq_moderation_count);
        numbers!(list, kernel.cq_moderation_caps, max_cq_moderation_period);
        Ok(())
    }

    fn driver(&self, list: &mut Limits) -> Result<()> {
        let mlx5 = &self.attributes()?.mlx5;
        numbers!(list, mlx5.tso_caps, max_tso);
        list.number("max_cqe_compression", mlx5.cqe_comp_caps.max_num);
        numbers!(list, mlx5.packet_pacing_caps, qp_rate_limit_min, qp_rate_limit_max);
        numbers!(list, mlx5.striding_rq_caps, min_single_stride_log_num_of_bytes);
        numbers!(list, mlx5.striding_rq_caps, max_single_stride_log_num_of_bytes);
        numbers!(list, mlx5.striding_rq_caps, min_single_wqe_log_num_of_strides);
        numbers!(list, mlx5.striding_rq_caps, max_single_wqe_log_num_of_strides);
        numbers!(list, mlx5.dci_streams_caps, max_log_num_concurent, max_log_num_errored);
        let driver = self.driver_limits();
        numbers!(list, driver, max_sq_desc_sz, max_rq_desc_sz, max_send_wqebb, max_recv_wr);
        numbers!(list, driver, cqe_version);
        Ok(())
    }
}
