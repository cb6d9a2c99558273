/* The state of the simulated cards: read from its file, and what hangs and fails by it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define MAX_CARDS 64
#define MIG_SLOTS 7
#define MAX_SETTINGS 2048

typedef unsigned long long u64;
enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE,
       TIMED_OUT = 10, VERSION_MISMATCH = 25 };

static const char *const ERRORS[] = {
    "SUCCESS", "UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "ALREADY_INITIALIZED",
    "NOT_FOUND", "INSUFFICIENT_SIZE", "INSUFFICIENT_POWER", "DRIVER_NOT_LOADED", "TIMEOUT", "IRQ_ISSUE",
    "LIBRARY_NOT_FOUND", "FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "GPU_IS_LOST", "RESET_REQUIRED",
    "OPERATING_SYSTEM", "LIB_RM_VERSION_MISMATCH", "IN_USE", "MEMORY", "NO_DATA"};

typedef struct { int card, slot; } handle_t;            /* slot < 0: the whole card */
static handle_t handles[MAX_CARDS][MIG_SLOTS + 1];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char *key, *value; } settings[MAX_SETTINGS];
static int n_settings;
static struct stat seen;
static int users;                                       /* nvmlInit without nvmlShutdown */
static u64 epoch_at_init;

/* ---- the file ---- */

static char *trimmed(char *s) {
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

static void refresh(void) {
    const char *path = getenv("K3_FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (n_settings) { n_settings--; free(settings[n_settings].key); free(settings[n_settings].value); }
    char line[1024];
    while (n_settings < MAX_SETTINGS && fgets(line, sizeof line, file)) {
        line[strcspn(line, "#")] = 0;
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = 0;
        settings[n_settings].key = strdup(trimmed(line));
        settings[n_settings++].value = strdup(trimmed(equals + 1));
    }
    fclose(file);
    seen = now;
}

/* Copies the value of a key; 0 when it is not set. */
static int get(char *out, size_t size, const char *format, ...) {
    char key[160];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    int found = 0;
    pthread_mutex_lock(&lock);
    refresh();
    for (int i = n_settings; i-- > 0 && !found;)
        if (!strcmp(settings[i].key, key)) { snprintf(out, size, "%s", settings[i].value); found = 1; }
    pthread_mutex_unlock(&lock);
    return found;
}

static int get_of(const handle_t *h, const char *key, char *out, size_t size) {
    if (h->slot >= 0) return get(out, size, "gpu.%d.mig.%d.%s", h->card, h->slot, key) || get(out, size, "mig.%s", key);
    return get(out, size, "gpu.%d.%s", h->card, key) || get(out, size, "gpu.%s", key);
}

static u64 number_of(const handle_t *h, const char *key, u64 otherwise) {
    char value[160];
    return get_of(h, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

/* The numbers of a list such as "0 1 4"; returns how many there are. */
static int numbers(const char *text, int *out, int room) {
    int n = 0;
    char *end;
    for (long v; n < room && (v = strtol(text, &end, 10), end != text); text = end + strspn(end, ", ")) out[n++] = (int) v;
    return n;
}

static int listed(int *cards) {
    char value[256];
    return numbers(get(value, sizeof value, "cards") ? value : "0", cards, MAX_CARDS);
}

static int code(const char *name) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) if (!strcmp(ERRORS[i], name)) return (int) i;
    return !strcmp(name, "UNKNOWN") ? 999 : atoi(name);
}

static u64 epoch(void) { char v[32]; return get(v, sizeof v, "epoch") ? strtoull(v, NULL, 0) : 0; }

/* ---- hanging and failing ---- */

static u64 pause_of(const handle_t *h, const char *symbol) {
    char key[96], value[64];
    snprintf(key, sizeof key, "sleep.%s", symbol);
    if (h) return get_of(h, key, value, sizeof value) || get(value, sizeof value, "gpu.%d.sleep", h->card)
        ? strtoull(value, NULL, 0) : 0;
    return get(value, sizeof value, "%s", key) ? strtoull(value, NULL, 0) : 0;
}

/* Notes in <state file>.overlaps a call on a card on which another one hangs. */
static void note_overlap(int card, const char *symbol) {
    char path[512];
    snprintf(path, sizeof path, "%s.overlaps", getenv("K3_FAKE_NVML"));
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%d %s\n", card, symbol);
    fclose(file);
}

static void hang(const handle_t *h, const char *symbol) {
    static int hanging[MAX_CARDS];
    const struct timespec step = {0, 10000000};
    if (!pause_of(h, symbol)) return;
    if (h && __atomic_fetch_add(&hanging[h->card], 1, __ATOMIC_SEQ_CST)) note_overlap(h->card, symbol);
    for (u64 waited = 0; waited < pause_of(h, symbol); waited += 10) nanosleep(&step, NULL);
    if (h) __atomic_fetch_sub(&hanging[h->card], 1, __ATOMIC_SEQ_CST);
}

static int refusal(const handle_t *h, const char *symbol) {
    char key[96], value[64];
    if (!users || epoch() != epoch_at_init) return UNINITIALIZED;
    if (get(value, sizeof value, "error") || get(value, sizeof value, "error.%s", symbol)) return code(value);
    if (!h) return OK;
    snprintf(key, sizeof key, "error.%s", symbol);
    if (get_of(h, key, value, sizeof value)) return code(value);
    return get(value, sizeof value, "gpu.%d.error", h->card) ? code(value) : OK;
}

static int entered(const handle_t *h, const char *symbol) { hang(h, symbol); return refusal(h, symbol); }

static int valid(const handle_t *h) { return h >= &handles[0][0] && h <= &handles[MAX_CARDS - 1][MIG_SLOTS]; }

static int denied(const handle_t *h) { return h->slot < 0 && number_of(h, "deny", 0) ? NO_PERMISSION : OK; }

#define SYSTEM() do { int e = entered(NULL, __func__); if (e) return e; } while (0)
#define DEVICE(h) do { if (!valid(h)) return INVALID_ARGUMENT; int e = entered(h, __func__); if (e) return e; } while (0)
#define VALUE(h) do { DEVICE(h); int e = denied(h); if (e) return e; } while (0)
#define WHOLE_CARD(h) do { VALUE(h); if ((h)->slot >= 0) return NOT_SUPPORTED; } while (0)
