//! The C interface of include/weft_rust.h, which says what each function promises.

mod digest;
mod ffi;
mod template;
mod tokenizer;
