/* A library that behaves as libnrt does, by its public headers (nrt/nrt.h, nrt/nrt_experimental.h, runtime 2.x).
 *
 * It takes the NEFFs that tests/fakes/neuronx_cc.py writes without compression: their tensors stand in the payload as
 * text. "Executing" a model sets every output to the element-wise sum of the inputs of its size, as float32.
 * fake_live() counts what was made and not freed; fake_fail() has the next call of a function fail.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, RESOURCE = 4, UNINITIALIZED = 13, EXEC_BAD_INPUT = 1002 };
enum { MAX_TENSORS = 64 };

typedef struct {
    char name[256];
    int usage;
    size_t size;
    int dtype;
    uint32_t *shape;
    uint32_t ndim;
} info_t;

typedef struct {
    uint64_t count;
    info_t tensors[];
} info_array_t;

typedef struct {
    int count;
    info_t tensors[MAX_TENSORS];
} model_t;

typedef struct {
    size_t size;
    unsigned char *data;
} tensor_t;

typedef struct {
    int count;
    char names[MAX_TENSORS][256];
    tensor_t *tensors[MAX_TENSORS];
} set_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised, live, failing_status;
static char failing[64];

static void count(int change) {
    pthread_mutex_lock(&lock);
    live += change;
    pthread_mutex_unlock(&lock);
}

static int check(const char *function) {
    int status = initialised ? SUCCESS : UNINITIALIZED;
    pthread_mutex_lock(&lock);
    if (failing_status && strcmp(failing, function) == 0) {
        status = failing_status;
        failing_status = 0;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

#define CHECK() do { int status_ = check(__func__); if (status_) return status_; } while (0)

int fake_live(void) { return live; }

void fake_fail(const char *function, int status) {
    snprintf(failing, sizeof failing, "%s", function);
    failing_status = status;
}

const char *nrt_get_status_as_str(int status) {
    switch (status) {
    case SUCCESS: return "NRT_SUCCESS";
    case INVALID: return "NRT_INVALID";
    case RESOURCE: return "NRT_RESOURCE";
    case UNINITIALIZED: return "NRT_UNINITIALIZED";
    case EXEC_BAD_INPUT: return "NRT_EXEC_BAD_INPUT";
    default: return "UNKNOWN";
    }
}

int nrt_init(int framework, const char *version, const char *fal_version) {
    if (framework != 1 || !version || !fal_version || initialised) return INVALID;
    initialised = 1;
    return SUCCESS;
}

void nrt_close(void) { initialised = 0; }

int nrt_load(const void *bytes, size_t size, int32_t core, int32_t unused, model_t **model) {
    uint64_t header_size, data_size;
    const char *text, *line;
    CHECK();
    (void)unused;
    if (size < 1024 || core < -1) return INVALID;
    memcpy(&header_size, (const char *)bytes + 8, 8);
    memcpy(&data_size, (const char *)bytes + 16, 8);
    if (header_size != 1024 || header_size + data_size != size) return INVALID;
    text = memmem((const char *)bytes + 1024, data_size, "FAKE-NEFF-TENSORS\n", 18);
    if (!text) return INVALID;
    *model = calloc(1, sizeof **model);
    for (line = text + 18; strncmp(line, "END\n", 4) != 0; line = strchr(line, '\n') + 1) {
        char usage[16];
        info_t *info = &(*model)->tensors[(*model)->count];
        if ((*model)->count == MAX_TENSORS || sscanf(line, "%15s %255s %zu", usage, info->name, &info->size) != 3) {
            free(*model);
            return INVALID;
        }
        info->usage = strcmp(usage, "input") != 0;
        (*model)->count++;
    }
    count(1);
    return SUCCESS;
}

int nrt_unload(model_t *model) {
    CHECK();
    free(model);
    count(-1);
    return SUCCESS;
}

int nrt_get_model_tensor_info(model_t *model, info_array_t **result) {
    CHECK();
    *result = malloc(sizeof **result + model->count * sizeof(info_t));
    (*result)->count = model->count;
    memcpy((*result)->tensors, model->tensors, model->count * sizeof(info_t));
    count(1);
    return SUCCESS;
}

int nrt_free_model_tensor_info(info_array_t *array) {
    free(array);
    count(-1);
    return SUCCESS;
}

int nrt_tensor_allocate(int placement, int core, size_t size, const char *name, tensor_t **tensor) {
    CHECK();
    (void)name;
    if (placement != 0 || core != 0) return INVALID;
    *tensor = malloc(sizeof **tensor);
    (*tensor)->size = size;
    (*tensor)->data = malloc(size ? size : 1);
    count(1);
    return SUCCESS;
}

void nrt_tensor_free(tensor_t **tensor) {
    free((*tensor)->data);
    free(*tensor);
    *tensor = NULL;
    count(-1);
}

int nrt_tensor_write(tensor_t *tensor, const void *source, size_t offset, size_t size) {
    CHECK();
    if (offset + size > tensor->size) return INVALID;
    memcpy(tensor->data + offset, source, size);
    return SUCCESS;
}

int nrt_tensor_read(const tensor_t *tensor, void *target, size_t offset, size_t size) {
    CHECK();
    if (offset + size > tensor->size) return INVALID;
    memcpy(target, tensor->data + offset, size);
    return SUCCESS;
}

int nrt_allocate_tensor_set(set_t **set) {
    CHECK();
    *set = calloc(1, sizeof **set);
    count(1);
    return SUCCESS;
}

/* The real one still looks at the tensors here: they must not have been freed. */
void nrt_destroy_tensor_set(set_t **set) {
    for (int i = 0; i < (*set)->count; i++) (*set)->tensors[i]->data[0] ^= 0;
    free(*set);
    *set = NULL;
    count(-1);
}

int nrt_add_tensor_to_tensor_set(set_t *set, const char *name, tensor_t *tensor) {
    CHECK();
    if (set->count == MAX_TENSORS) return INVALID;
    snprintf(set->names[set->count], sizeof set->names[0], "%s", name);
    set->tensors[set->count++] = tensor;
    return SUCCESS;
}

static tensor_t *find(const set_t *set, const info_t *info) {
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->names[i], info->name) == 0 && set->tensors[i]->size == info->size) return set->tensors[i];
    return NULL;
}

int nrt_execute(model_t *model, const set_t *inputs, set_t *outputs) {
    CHECK();
    for (int i = 0; i < model->count; i++)
        if (!find(model->tensors[i].usage ? outputs : inputs, &model->tensors[i])) return EXEC_BAD_INPUT;
    for (int o = 0; o < model->count; o++) {
        tensor_t *output;
        if (!model->tensors[o].usage) continue;
        output = find(outputs, &model->tensors[o]);
        memset(output->data, 0, output->size);
        for (int i = 0; i < model->count; i++) {
            tensor_t *input;
            if (model->tensors[i].usage || model->tensors[i].size != output->size) continue;
            input = find(inputs, &model->tensors[i]);
            for (size_t k = 0; k < output->size / 4; k++) ((float *)output->data)[k] += ((float *)input->data)[k];
        }
    }
    return SUCCESS;
}
