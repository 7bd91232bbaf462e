//! The C interface of include/weft_rust.h, which says what each function promises.
//! Without the feature `text` it is BLAKE3 alone.
#![cfg_attr(not(feature = "text"), allow(dead_code))]

mod digest;
mod ffi;
#[cfg(feature = "text")]
mod template;
#[cfg(feature = "text")]
mod tokenizer;
