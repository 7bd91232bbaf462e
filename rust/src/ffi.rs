//! What the entries share: borrowed input, owned output, and the net under panics.

use std::panic::{catch_unwind, AssertUnwindSafe};

#[repr(C)]
pub struct WeftText {
    data: *mut u8,
    size: usize,
}

impl From<String> for WeftText {
    fn from(text: String) -> Self {
        let bytes = Box::leak(text.into_bytes().into_boxed_slice());
        WeftText { data: bytes.as_mut_ptr(), size: bytes.len() }
    }
}

#[repr(C)]
pub struct WeftIds {
    data: *mut u32,
    size: usize,
}

impl From<Vec<u32>> for WeftIds {
    fn from(ids: Vec<u32>) -> Self {
        let ids = Box::leak(ids.into_boxed_slice());
        WeftIds { data: ids.as_mut_ptr(), size: ids.len() }
    }
}

#[no_mangle]
pub unsafe extern "C" fn weft_text_free(text: WeftText) {
    free_slice(text.data, text.size);
}

#[no_mangle]
pub unsafe extern "C" fn weft_ids_free(ids: WeftIds) {
    free_slice(ids.data, ids.size);
}

unsafe fn free_slice<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, size)));
    }
}

/// A C pair of pointer and count; null is fine when the count is 0.
pub unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

pub unsafe fn text<'a>(data: *const u8, size: usize) -> Result<&'a str, String> {
    std::str::from_utf8(slice(data, size))
        .map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))
}

pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

/// Runs what cannot fail; a panic in it is a bug that must not unwind into C++.
pub fn infallible<T>(run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| std::process::abort())
}

/// Runs what can fail. The reason, that of a panic too, goes to `error`.
pub unsafe fn fallible<T>(
    error: *mut WeftText,
    run: impl FnOnce() -> Result<T, String>,
) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", words.unwrap_or("no reason given")))
    });
    result.map_err(|reason| error.write(reason.into())).ok()
}
