//! One HTTP/1.1 connection, with the kernel's timestamps of its bytes: [`stamp`], [`tcp`], `landing`, [`request`], [`link`], [`keeping`], [`pool`].

pub mod header_template;
pub mod keeping;
pub(crate) mod landing;
pub mod link;
pub mod pool;
pub mod request;
pub mod stamp;
pub mod tcp;
pub(crate) mod tcp_info;
