#ifndef WEFT_WEFT_H_
#define WEFT_WEFT_H_
/* libweft in C: new weights for inference engines, over plain HTTP. C11; any language that calls C.
 *
 *   publish   tensors in memory become a version on a server: an engine's receiver, or a store
 *   offer     the same tensors wait in this process until engines pull them
 *   pull      a version of a server, into memory or into a folder; every block is verified
 *   receive   this process is a server that takes versions in, and hands each over when it is there
 *   store     a folder of versions, served from this process
 *   diff      what one version changes of another, as a file; apply makes the version of it again
 *
 * docs/c.md is the guide, docs/protocol.md says what goes over the wire. For every function here:
 *
 * - It returns WEFT_OK or the code that says what to do; weft_error_message() has the words. What
 * it gives back through a pointer is written only with WEFT_OK.
 * - It may be called from any thread, and with one handle from several at once. Those that move
 * bytes block until that is done.
 * - Strings are UTF-8 and end with a 0. What is handed in is needed until the call returns, unless
 * it says otherwise. What is handed out lives as long as the handle that it came from.
 * - A handle belongs to the caller, who gives it back with its _close or _release. NULL is fine
 * there.
 * - Option structs begin as WEFT_..._INIT: all other fields 0 or NULL, which are the defaults.
 *   struct_size says which fields a caller knows, so fields may be added at the end, and the ABI
 * stays.
 * - A callback runs on a thread of libweft, or on the one that called; it may call libweft, but may
 *   not close the handle it belongs to, nor throw or jump past it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef WEFT_API
#define WEFT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a program that was compiled with an older header would not run any more. */
#define WEFT_ABI_VERSION 1
WEFT_API uint32_t weft_abi_version(void); /* of the library that is loaded */
WEFT_API const char* weft_version(void);  /* "0.1.0" */

/* ---- Errors ---- */

/* What to do. The numbers stay what they are. */
typedef enum weft_code {
  WEFT_OK = 0,
  WEFT_INVALID_ARGUMENT = 1,    /* the call is wrong: mend it */
  WEFT_UNAUTHENTICATED = 2,     /* no key, or one that is not known (any more): take another */
  WEFT_FORBIDDEN = 3,           /* the key is known, but may not do this */
  WEFT_NOT_FOUND = 4,           /* no such version, tensor or file; or the server is no weft */
  WEFT_METHOD_NOT_ALLOWED = 5,  /* the server has no such call: an older one, or no weft */
  WEFT_CONFLICT = 6,            /* the state is another: look at it again */
  WEFT_PRECONDITION_FAILED = 7, /* a head was moved by someone else: read it again, then decide */
  WEFT_TOO_LARGE = 8,           /* over a limit that the message names */
  WEFT_RANGE_INVALID = 9,       /* bytes that are not there were asked for */
  WEFT_UNSUPPORTED = 10,        /* a dtype, format or encoding that is not known: use another */
  WEFT_CORRUPT = 11,            /* bytes are not what their digest says: send again, do not use */
  WEFT_OVERLOADED = 12,         /* out of memory or slots for now: wait, try again */
  WEFT_NO_SPACE = 13,           /* the disk is full: free some, try again */
  WEFT_DISCONNECTED = 14,       /* the server went away, or cannot be reached: try again */
  WEFT_DEADLINE = 15,           /* time ran out: try again with more, or give up */
  WEFT_CANCELLED = 16,          /* weft_client_cancel() was called, or a callback said so */
  WEFT_INTERNAL = 17            /* a bug: report it */
} weft_code;

/* "invalid_argument"; NULL for a number that is none. Constant. */
WEFT_API const char* weft_code_name(weft_code code);
/* Why the last call of this thread that failed did. "" where none has. Until this thread's next
 * call that fails. */
WEFT_API const char* weft_error_message(void);
/* The words for the code that a callback is about to return; they are copied. NULL: none. */
WEFT_API void weft_set_error_message(const char* message);

/* What libweft says on standard error, from now on and in this process. WEFT_LOG_WARNING until set.
 */
typedef enum weft_log_level {
  WEFT_LOG_DEBUG = 0,
  WEFT_LOG_INFO = 1,
  WEFT_LOG_WARNING = 2,
  WEFT_LOG_ERROR = 3,
  WEFT_LOG_OFF = 4
} weft_log_level;
WEFT_API void weft_set_log_level(weft_log_level level);

/* ---- Tensors ---- */

/* safetensors' types. The numbers stay what they are. */
typedef enum weft_dtype {
  WEFT_BOOL = 0,
  WEFT_U8 = 1,
  WEFT_I8 = 2,
  WEFT_F8_E5M2 = 3,
  WEFT_F8_E4M3 = 4,
  WEFT_I16 = 5,
  WEFT_U16 = 6,
  WEFT_F16 = 7,
  WEFT_BF16 = 8,
  WEFT_I32 = 9,
  WEFT_U32 = 10,
  WEFT_F32 = 11,
  WEFT_F64 = 12,
  WEFT_I64 = 13,
  WEFT_U64 = 14
} weft_dtype;

/* Bytes of one element; 0 for a number that is none. */
WEFT_API size_t weft_dtype_size(weft_dtype dtype);
/* "bfloat16", as torch and vLLM say; NULL for a number that is none. Constant. */
WEFT_API const char* weft_dtype_name(weft_dtype dtype);
/* From torch's name ("bfloat16", "torch.bfloat16") or safetensors' ("BF16"). WEFT_UNSUPPORTED. */
WEFT_API weft_code weft_dtype_parse(const char* name, weft_dtype* dtype);

/* One tensor as Hugging Face names it: the full shape, in C order, little-endian. */
typedef struct weft_tensor {
  const char* name;
  weft_dtype dtype;
  uint32_t rank;         /* 0: a scalar */
  const uint64_t* shape; /* [rank]; may be NULL for a scalar */
  const void* data;      /* may be NULL where the bytes come from elsewhere */
  uint64_t size_bytes;   /* of data: elements times weft_dtype_size() */
} weft_tensor;

/* A small file that belongs to a model: config.json, tokenizer.json, ... */
typedef struct weft_file {
  const char* name;
  const void* data;
  uint64_t size_bytes;
} weft_file;

/* Reads bytes [offset, offset + size) of a tensor: fills `buffer`, or sets *view to where they lie
 * (until what it was given to returns). The same bytes each time; from several threads at once.
 * Returns WEFT_OK, or a code after weft_set_error_message(): whatever reads then ends with it. */
typedef weft_code (*weft_read_fn)(void* context, size_t tensor, uint64_t offset_bytes, void* buffer,
                                  size_t size_bytes, const void** view);

/* What is published: tensors in memory, or read by a callback, or a model on disk. */
typedef struct weft_source {
  size_t struct_size;
  const char* path; /* a Hugging Face folder, or a .safetensors file; then no other field counts */
  const weft_tensor* tensors; /* [tensor_count]; each name once */
  size_t tensor_count;
  const weft_file* files; /* [file_count] */
  size_t file_count;
  weft_read_fn read; /* NULL: each tensor has its data. Else data is not looked at */
  void* context;     /* for read */
  bool costly;       /* reading costs more than sending: each byte is read once if that can be */
} weft_source;
#define WEFT_SOURCE_INIT \
  { .struct_size = sizeof(weft_source) }

/* Called now and then with the bytes that are there and verified, out of all. */
typedef void (*weft_progress_fn)(void* context, uint64_t done_bytes, uint64_t total_bytes);

/* "blake3:" and 64 digits, and the 0. */
#define WEFT_ID_SIZE 72

/* ---- A server to talk to ---- */

typedef struct weft_client weft_client;

typedef struct weft_client_options {
  size_t struct_size;
  const char* key;             /* sent as `Authorization: Bearer KEY`; NULL: none */
  const char* ca_file;         /* PEM, for https; NULL: the authorities of this machine */
  uint64_t connect_timeout_ms; /* 0: 10,000 */
  uint64_t idle_timeout_ms;    /* without a byte in or out; 0: 60,000 */
  uint32_t max_connections;    /* kept open; 0: 64 */
} weft_client_options;
#define WEFT_CLIENT_OPTIONS_INIT \
  { .struct_size = sizeof(weft_client_options) }

/* `url`: "http://host:port", https, with a path in front if there is one. Does not connect yet.
 * WEFT_INVALID_ARGUMENT. */
WEFT_API weft_code weft_client_open(const char* url, const weft_client_options* options,
                                    weft_client** client);
/* Ends all calls on this client, and all that come, with WEFT_CANCELLED. Does not block. */
WEFT_API void weft_client_cancel(weft_client* client);
/* No call may be under way. */
WEFT_API void weft_client_close(weft_client* client);

/* The id that `version` means there: an id, "#head", a label, or the first 8 hex digits or more of
 * an id. WEFT_NOT_FOUND; WEFT_INVALID_ARGUMENT where several ids begin so. */
WEFT_API weft_code weft_resolve(weft_client* client, const char* version, char id[WEFT_ID_SIZE]);

/* ---- Publish ---- */

typedef enum weft_announce {
  WEFT_ANNOUNCE_AUTOMATIC = 0, /* unless the source is costly */
  WEFT_ANNOUNCE_ALWAYS = 1, /* digests first: what the server has is not sent, a cut push goes on */
  WEFT_ANNOUNCE_NEVER = 2   /* each byte is read once */
} weft_announce;

typedef struct weft_publish_options {
  size_t struct_size;
  const char* label;     /* of the new version; NULL leaves the server's */
  const char* session;   /* who owns the upload; the same one again takes it up. NULL: a new one */
  const char* head;      /* that is moved to it; NULL: the server's default */
  const char* if_match;  /* the id that the head must have now; else WEFT_PRECONDITION_FAILED */
  const char* parent;    /* an id, for the record */
  const char* origin;    /* who made it, for the record */
  const char* on_update; /* "continue", "recompute", "finish", "abort": what running sequences do */
  uint32_t connections;  /* 0: 2 */
  int32_t retries;       /* in a row that bring nothing; 0: 5, less: none */
  weft_announce announce;
  bool stage_only; /* stop when it is sealed; nothing changes on the server */
  bool zstd;       /* compress what gets shorter */
  /* A version that the server has, and its tensors: what changed since goes as deltas. A server
   * that does not have it is sent everything. */
  const char* base_id;
  const weft_source* base;
  bool partial; /* tensors that the source lacks are the base's, which must then be there */
  weft_progress_fn progress;
  void* context; /* for progress */
} weft_publish_options;
#define WEFT_PUBLISH_OPTIONS_INIT \
  { .struct_size = sizeof(weft_publish_options) }

typedef struct weft_publish_report {
  size_t struct_size;
  char id[WEFT_ID_SIZE];  /* of the version */
  uint32_t resumed;       /* how often something was taken up again */
  uint64_t total_bytes;   /* of tensors and files */
  uint64_t sent_bytes;    /* bodies of blocks on the wire */
  uint64_t skipped_bytes; /* the server had them */
  uint64_t delta_bytes;   /* of sent_bytes: as deltas or sparse blocks over the base */
  double hash_seconds, send_seconds, commit_seconds, total_seconds;
  double stall_us; /* how long generation stood still */
  bool converted;  /* the server keeps the tensors in other dtypes */
} weft_publish_report;
#define WEFT_PUBLISH_REPORT_INIT \
  { .struct_size = sizeof(weft_publish_report) }

/* Pushes all of `source` and makes it what the server serves (or moves the head of a store).
 * Nothing changes there before that; after an error the old version serves on. `options` and
 * `report` may be NULL. Errors: the server's, with its words; the source's; WEFT_DISCONNECTED when
 * retries ran out. WEFT_CORRUPT names the tensor whose bytes changed while they were sent. */
WEFT_API weft_code weft_publish(weft_client* client, const weft_source* source,
                                const weft_publish_options* options, weft_publish_report* report);

/* ---- The tensors of one version, in memory ---- */

/* Complete, verified, immutable. Counted: who keeps it says so. */
typedef struct weft_weights weft_weights;

WEFT_API const weft_weights* weft_weights_retain(const weft_weights* weights);
WEFT_API void weft_weights_release(const weft_weights* weights);

WEFT_API const char* weft_weights_id(const weft_weights* weights);
WEFT_API const char* weft_weights_label(const weft_weights* weights); /* "" where it has none */
/* Sorted by name, bytewise. */
WEFT_API size_t weft_weights_tensor_count(const weft_weights* weights);
/* Its data is aligned to 64 bytes and lives as long as the weights. WEFT_NOT_FOUND. */
WEFT_API weft_code weft_weights_tensor(const weft_weights* weights, size_t index,
                                       weft_tensor* tensor);
WEFT_API weft_code weft_weights_find(const weft_weights* weights, const char* name,
                                     weft_tensor* tensor);
WEFT_API size_t weft_weights_file_count(const weft_weights* weights);
WEFT_API weft_code weft_weights_file(const weft_weights* weights, size_t index, weft_file* file);

/* ---- Pull ---- */

/* A tensor is there and verified, while others are still on their way: its data is final, and lives
 * as long as the weights; after a pull that fails it is let go. From the thread that pulls, once
 * for each tensor. */
typedef void (*weft_tensor_fn)(void* context, const weft_tensor* tensor);

typedef struct weft_pull_options {
  size_t struct_size;
  uint32_t connections;        /* 0: 2 */
  int32_t retries;             /* in a row that bring nothing; 0: 5, less: none */
  weft_client* const* mirrors; /* [mirror_count] asked where the first fails or has wrong bytes */
  size_t mirror_count;
  const weft_source* base; /* bytes at hand: blocks that are equal are copied, not fetched */
  weft_progress_fn progress;
  void* context; /* for progress, and for tensor */
  /* weft_pull(): a version at hand. What changed since comes as deltas, where the server has them
   * and they are shorter; `base` is not looked at then. */
  const weft_weights* base_weights;
  /* weft_pull(): weights that nobody else holds and that have the same tensors. Their memory is
   * written over, so the handle is only good for weft_weights_release() then. Where that cannot be,
   * new memory is taken, and they stay. */
  const weft_weights* reuse;
  weft_tensor_fn tensor; /* weft_pull(): called as tensors are complete */
} weft_pull_options;
#define WEFT_PULL_OPTIONS_INIT \
  { .struct_size = sizeof(weft_pull_options) }

typedef struct weft_pull_report {
  size_t struct_size;
  char id[WEFT_ID_SIZE];
  uint64_t total_bytes;    /* of tensors and files */
  uint64_t fetched_bytes;  /* and verified */
  uint64_t held_bytes;     /* were at hand */
  uint32_t resumed;        /* how often something was taken up again */
  uint32_t corrupt_blocks; /* came wrong, and were fetched again */
  double seconds;
  uint32_t deltas; /* how many it came by; 0: in full */
} weft_pull_report;
#define WEFT_PULL_REPORT_INIT \
  { .struct_size = sizeof(weft_pull_report) }

/* Pulls a version, named as in weft_resolve(), into memory. `options` and `report` may be NULL.
 * Errors: as weft_resolve(); the server's; WEFT_CORRUPT, naming the block, for bytes that keep
 * coming wrong; WEFT_OVERLOADED where there is no memory; WEFT_DISCONNECTED when retries ran out.
 */
WEFT_API weft_code weft_pull(weft_client* client, const char* version,
                             const weft_pull_options* options, weft_weights** weights,
                             weft_pull_report* report);
/* The same into a folder as transformers reads it. It gets its name when all is there; a pull that
 * was cut goes on with what came. Also WEFT_CONFLICT, when there is something at `folder`. */
WEFT_API weft_code weft_pull_folder(weft_client* client, const char* version, const char* folder,
                                    const weft_pull_options* options, weft_pull_report* report);

/* ---- Changes: an update in place ---- */

/* What a version changes of another, element by element. */
typedef struct weft_changes weft_changes;

typedef struct weft_change {
  size_t tensor;           /* its index in the weights */
  uint64_t count;          /* changed elements */
  const int64_t* elements; /* [count] flat indices in C order, ascending */
  const void* values;      /* [count] the new ones, of the tensor's dtype */
} weft_change;

/* Pulls what `version` changes of `base`, by deltas. Each is proven by its own digest, and by that
 * of the values which it replaces; weft_changes_verify() proves what comes of it. Nothing is
 * written over. WEFT_UNSUPPORTED, with the reason, where the server has no shorter way than all of
 * it, or where more than a sixteenth changes: weft_pull() is the way then. Else errors as of
 * weft_pull(). Of `options` connections, progress and context count. `base` must stay until the
 * changes are closed. */
WEFT_API weft_code weft_pull_changes(weft_client* client, const char* version,
                                     const weft_weights* base, const weft_pull_options* options,
                                     weft_changes** changes, weft_pull_report* report);
/* Tensors that change, in order. */
WEFT_API size_t weft_changes_count(const weft_changes* changes);
/* Which tensor change `index` is of: its index in the weights; SIZE_MAX if there is no such change.
 */
WEFT_API size_t weft_changes_tensor(const weft_changes* changes, size_t index);
/* Makes the lists at the first call; one thread at a time. WEFT_NOT_FOUND. */
WEFT_API weft_code weft_changes_at(weft_changes* changes, size_t index, weft_change* change);

/* `data` is that tensor in a place of yours: all its elements in C order. WEFT_NOT_FOUND as above.
 */

/* WEFT_CONFLICT unless `data` has the values that will be replaced, bit for bit. */
WEFT_API weft_code weft_changes_check(const weft_changes* changes, size_t index, const void* data);
/* Writes the new values over `data`, and keeps the others. */
WEFT_API weft_code weft_changes_write(weft_changes* changes, size_t index, void* data);
/* Puts back what the last write to `data` replaced. WEFT_CONFLICT if there was none. */
WEFT_API weft_code weft_changes_undo(weft_changes* changes, size_t index, void* data);

/* Hashes every block of the version that changes, as it will be or, after weft_changes_apply(), as
 * it is in the memory of `base`: WEFT_CORRUPT, naming the tensor, unless it is what the version's
 * id says. `threads`: 0: 2. */
WEFT_API weft_code weft_changes_verify(const weft_changes* changes, uint32_t threads);
/* Writes them over the memory of `base`, which becomes the version that was pulled: `after`. Nobody
 * may read it meanwhile; other handles on that memory are only good for weft_weights_release()
 * then. Once; then WEFT_CONFLICT. */
WEFT_API weft_code weft_changes_apply(weft_changes* changes, const weft_weights** after);
WEFT_API void weft_changes_close(weft_changes* changes);

/* How a server of this process listens. */
typedef struct weft_listen_options {
  size_t struct_size;
  const char* host;      /* NULL: 127.0.0.1 */
  uint16_t port;         /* 0: any free one */
  bool insecure;         /* may listen beyond this machine without an admin key */
  const char* admin_key; /* opens everything; NULL: everything is open */
  const char* read_key;  /* opens what only reads; NULL: that is open */
  const char* tls_cert;  /* PEM; NULL: plain HTTP */
  const char* tls_key;   /* NULL: it is in tls_cert */
} weft_listen_options;
#define WEFT_LISTEN_OPTIONS_INIT \
  { .struct_size = sizeof(weft_listen_options) }

/* ---- Offer: a trainer's versions, pulled by engines ---- */

typedef struct weft_offer weft_offer;

typedef struct weft_offer_options {
  size_t struct_size;
  const char* label; /* NULL: none */
  uint32_t threads;  /* that hash and encode; 0: 2 */
  bool no_delta;     /* else what changed since the version before is offered, too */
  weft_progress_fn progress;
  void* context;    /* for progress */
  bool small_delta; /* coded to about a quarter of the bytes, in thrice the time, on both sides: for
                     * links below some Gbit/s */
} weft_offer_options;
#define WEFT_OFFER_OPTIONS_INIT \
  { .struct_size = sizeof(weft_offer_options) }

/* A server that holds the newest version of this process, and the one before, in memory. Errors as
 * of weft_receiver_open(). */
WEFT_API weft_code weft_offer_open(const weft_listen_options* listen, weft_offer** offer);
WEFT_API const char* weft_offer_url(const weft_offer* offer);
/* Copies all of `source`, and makes it the head `main` there. Of the report id, bytes and times are
 * filled; sent_bytes is 0, delta_bytes are those of the delta that is offered. */
WEFT_API weft_code weft_offer_publish(weft_offer* offer, const weft_source* source,
                                      const weft_offer_options* options,
                                      weft_publish_report* report);
/* Cuts what is under way. */
WEFT_API void weft_offer_close(weft_offer* offer);

/* ---- Diff and apply ---- */

typedef struct weft_diff_options {
  size_t struct_size;
  uint32_t threads; /* 0: 2 */
  weft_progress_fn progress;
  void* context; /* for progress */
} weft_diff_options;
#define WEFT_DIFF_OPTIONS_INIT \
  { .struct_size = sizeof(weft_diff_options) }

typedef struct weft_diff_report {
  size_t struct_size;
  char base_id[WEFT_ID_SIZE], id[WEFT_ID_SIZE];
  uint64_t total_bytes;    /* of the version */
  uint64_t file_bytes;     /* of the file */
  uint64_t changed_blocks; /* of 8 MiB at most */
} weft_diff_report;
#define WEFT_DIFF_REPORT_INIT \
  { .struct_size = sizeof(weft_diff_report) }

/* Writes what `target` changes of `base` to a file, which is proven before it gets its name.
 * Errors: the sources'; WEFT_FORBIDDEN, WEFT_NO_SPACE. */
WEFT_API weft_code weft_diff(const weft_source* base, const weft_source* target, const char* file,
                             const weft_diff_options* options, weft_diff_report* report);
/* The version that such a file makes of `base`, in memory: verified. WEFT_CONFLICT when it was made
 * against another base; WEFT_CORRUPT for a file that is broken. */
WEFT_API weft_code weft_apply(const weft_source* base, const char* file,
                              const weft_diff_options* options, weft_weights** weights,
                              weft_diff_report* report);
/* The same into a folder, as of weft_pull_folder(). */
WEFT_API weft_code weft_apply_folder(const weft_source* base, const char* file, const char* folder,
                                     const weft_diff_options* options, weft_diff_report* report);

/* ---- Receive ---- */

typedef struct weft_receiver weft_receiver;

/* A version is complete and verified, and its commit is asked for. WEFT_OK takes it: it is then
 * what the receiver serves. Any other code, after weft_set_error_message(), refuses it: the sender
 * hears that, and the version before serves on. WEFT_OVERLOADED and WEFT_CONFLICT say that the same
 * version may be taken later, so the sender tries again. `weights` is valid until this returns;
 * retain it to keep it, but not one that is refused: its memory is written over. One call at a
 * time. */
typedef weft_code (*weft_take_fn)(void* context, const weft_weights* weights);

typedef struct weft_receiver_options {
  size_t struct_size;
  const weft_listen_options* listen; /* NULL: a free port of this machine */
  weft_take_fn take;                 /* NULL: every version is taken */
  void* context;                     /* for take */
  const weft_file* files;            /* [file_count] of the version at the start */
  size_t file_count;
  uint64_t lease_ms;    /* an upload that hears nothing for so long is dropped; 0: 300,000 */
  bool tied_embeddings; /* a pushed lm_head.weight must equal the embedding, and is dropped */
} weft_receiver_options;
#define WEFT_RECEIVER_OPTIONS_INIT \
  { .struct_size = sizeof(weft_receiver_options) }

/* Listens for versions with exactly these tensors. `tensors` is the version at the start: copied
 * where it has data, else zeros. Memory: two sets. A set whose weights someone still holds is not
 * written over: the next upload waits until they are released. WEFT_CONFLICT when the port is
 * taken; WEFT_OVERLOADED where there is no memory. */
WEFT_API weft_code weft_receiver_open(const weft_tensor* tensors, size_t tensor_count,
                                      const weft_receiver_options* options,
                                      weft_receiver** receiver);
WEFT_API const char* weft_receiver_url(const weft_receiver* receiver); /* "http://127.0.0.1:8000" */
/* What is served now, retained for the caller. */
WEFT_API const weft_weights* weft_receiver_current(weft_receiver* receiver);
/* Pulls a version, named as in weft_resolve(), and takes it as if it had been pushed; blocks that
 * are at hand are not fetched. Errors: as weft_pull(), and what `take` says. */
WEFT_API weft_code weft_receiver_pull(weft_receiver* receiver, weft_client* source,
                                      const char* version);
/* Cuts what is under way. Weights that were retained stay. */
WEFT_API void weft_receiver_close(weft_receiver* receiver);

/* ---- Store ---- */

typedef struct weft_store weft_store;

typedef struct weft_store_options {
  size_t struct_size;
  const weft_listen_options* listen; /* NULL: a free port of this machine */
  uint64_t keep_last;                /* so many versions stay, the newest; 0: all */
} weft_store_options;
#define WEFT_STORE_OPTIONS_INIT \
  { .struct_size = sizeof(weft_store_options) }

/* Serves the versions in `folder`, which is made where there is none, as `weft store` does.
 * WEFT_CONFLICT, naming the process, when another one has it, or when the port is taken;
 * WEFT_INVALID_ARGUMENT for a folder of something else. */
WEFT_API weft_code weft_store_open(const char* folder, const weft_store_options* options,
                                   weft_store** store);
WEFT_API const char* weft_store_url(const weft_store* store);
/* Cuts what is under way; what was committed stays. */
WEFT_API void weft_store_close(weft_store* store);

#ifdef __cplusplus
}
#endif
#endif /* WEFT_WEFT_H_ */
