use crate::ffi::{free, infallible, slice};
use blake3::hazmat::{merge_subtrees_non_root, merge_subtrees_root, HasherExt, Mode};
use blake3::Hasher;

#[no_mangle]
pub extern "C" fn weft_hasher_new(offset_bytes: u64) -> *mut Hasher {
    infallible(|| {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(offset_bytes);
        Box::into_raw(Box::new(hasher))
    })
}

#[no_mangle]
pub unsafe extern "C" fn weft_hasher_free(hasher: *mut Hasher) {
    free(hasher);
}

#[no_mangle]
pub unsafe extern "C" fn weft_hasher_update(hasher: *mut Hasher, data: *const u8, size: usize) {
    infallible(|| {
        (*hasher).update(slice(data, size));
    })
}

#[no_mangle]
pub unsafe extern "C" fn weft_hasher_finish(
    hasher: *const Hasher,
    is_root: bool,
    out: *mut [u8; 32],
) {
    infallible(|| {
        *out =
            if is_root { *(*hasher).finalize().as_bytes() } else { (*hasher).finalize_non_root() };
    })
}

#[no_mangle]
pub unsafe extern "C" fn weft_hasher_merge(
    left: *const [u8; 32],
    right: *const [u8; 32],
    is_root: bool,
    out: *mut [u8; 32],
) {
    infallible(|| {
        *out = if is_root {
            *merge_subtrees_root(&*left, &*right, Mode::Hash).as_bytes()
        } else {
            merge_subtrees_non_root(&*left, &*right, Mode::Hash)
        };
    })
}
