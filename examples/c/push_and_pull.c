/* Takes what a weft server has (an engine, or a store's head `main`), turns the sign of one tensor, and
 * publishes that as a new version; pulls it back and looks that it is what was sent.
 *
 *   cc -std=c11 push_and_pull.c $(pkg-config --cflags --libs weft) -o push_and_pull
 *   ./push_and_pull http://127.0.0.1:8000 model.norm.weight
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

/* What failed, and what to do about it. */
static int report(const char* what, weft_code code) {
  fprintf(stderr, "%s: %s: %s\n", what, weft_code_name(code), weft_error_message());
  return EXIT_FAILURE;
}

static void show_progress(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  const char* what = context;
  fprintf(stderr, "%s: %llu of %llu bytes\n", what, (unsigned long long)done_bytes,
          (unsigned long long)total_bytes);
}

/* A copy of the tensor's bytes with the sign bit of each element turned; floating point, little-endian. */
static unsigned char* turn_signs(const weft_tensor* tensor) {
  const size_t element_bytes = weft_dtype_size(tensor->dtype);
  unsigned char* const bytes = malloc(tensor->size_bytes);
  if (bytes == NULL) return NULL;
  memcpy(bytes, tensor->data, tensor->size_bytes);
  for (uint64_t i = element_bytes; i <= tensor->size_bytes; i += element_bytes) bytes[i - 1] ^= 0x80;
  return bytes;
}

/* Publishes `weights` with one tensor's bytes replaced. What did not change is not sent again. */
static weft_code publish_changed(weft_client* client, const weft_weights* weights,
                                 const char* name, const void* bytes,
                                 weft_publish_report* published) {
  const size_t count = weft_weights_tensor_count(weights);
  weft_tensor* const tensors = calloc(count, sizeof(*tensors));
  if (tensors == NULL) return WEFT_OVERLOADED;
  for (size_t i = 0; i < count; ++i) {
    weft_weights_tensor(weights, i, &tensors[i]);
    if (strcmp(tensors[i].name, name) == 0) tensors[i].data = bytes;
  }
  weft_source source = WEFT_SOURCE_INIT;
  source.tensors = tensors;
  source.tensor_count = count;
  weft_publish_options options = WEFT_PUBLISH_OPTIONS_INIT;
  options.label = "signs-turned";
  options.head = "main";
  options.progress = show_progress;
  options.context = "publish";
  const weft_code code = weft_publish(client, &source, &options, published);
  free(tensors);
  return code;
}

/* Pulls the version `id` and compares one tensor. */
static int check_pulled(weft_client* client, const char* id, const char* name, const void* bytes) {
  weft_weights* pulled = NULL;
  weft_tensor tensor;
  weft_code code = weft_pull(client, id, NULL, &pulled, NULL);
  if (code != WEFT_OK) return report("pull", code);
  code = weft_weights_find(pulled, name, &tensor);
  if (code != WEFT_OK) return report("pull", code);
  const int is_same = memcmp(tensor.data, bytes, tensor.size_bytes) == 0;
  printf("pulled %s: %s\n", weft_weights_id(pulled), is_same ? "as sent" : "NOT what was sent");
  weft_weights_release(pulled);
  return is_same ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s URL TENSOR [KEY]\n", argv[0]);
    return 2;
  }
  weft_client_options access = WEFT_CLIENT_OPTIONS_INIT;
  access.key = argc > 3 ? argv[3] : NULL;
  weft_client* client = NULL;
  weft_code code = weft_client_open(argv[1], &access, &client);
  if (code != WEFT_OK) return report(argv[1], code);

  weft_weights* weights = NULL;
  code = weft_pull(client, "#main", NULL, &weights, NULL);
  if (code != WEFT_OK) return report("pull", code);
  weft_tensor tensor;
  code = weft_weights_find(weights, argv[2], &tensor);
  if (code != WEFT_OK) return report(argv[2], code);
  unsigned char* const turned = turn_signs(&tensor);
  if (turned == NULL) return EXIT_FAILURE;

  weft_publish_report published = WEFT_PUBLISH_REPORT_INIT;
  code = publish_changed(client, weights, tensor.name, turned, &published);
  if (code != WEFT_OK) return report("publish", code);
  printf("published %s: %llu bytes sent, %llu were there\n", published.id,
         (unsigned long long)published.sent_bytes, (unsigned long long)published.skipped_bytes);

  const int status = check_pulled(client, published.id, tensor.name, turned);
  free(turned);
  weft_weights_release(weights);
  weft_client_close(client);
  return status;
}
