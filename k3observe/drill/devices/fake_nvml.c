/* A libnvidia-ml.so.1 without a GPU: simulated cards whose state is a text file.
 *
 * K3_FAKE_NVML names the file. It is read again when it is replaced or changed, so that cards of a running exporter
 * can be broken and healed from outside. One "key = value" a line; "#" starts a comment; replace the file by a rename.
 * A key of one card is looked up as gpu.<card>.<key>, then as gpu.<key>; one of a MIG instance as
 * gpu.<card>.mig.<slot>.<key>, then as mig.<key>.
 *
 *   cards = 0 1 2 4              the cards that the driver lists; their place in this list is the NVML index
 *   driver = 580.95.05           driver version
 *   epoch = 1                    another value is another load of the driver: calls answer UNINITIALIZED until nvmlInit
 *   error = NAME                 every call fails; error.<symbol> = NAME: this call fails
 *   sleep.<symbol> = 3000        milliseconds before a call of the system (nvmlInitWithFlags, ...) answers
 *   gpu.3.error = GPU_IS_LOST    every call on the handle of card 3 fails; gpu.3.error.<symbol> only this one
 *   gpu.3.sleep = 3000           every call on card 3 answers after so long, or when the key is gone; .sleep.<symbol>
 *   gpu.3.deny = 1               a MIG parent seen from a container: NO_PERMISSION but for its handle, UUID, bus, MIG
 *   gpu.3.uuid, .name (\xNN for a byte), .bus
 *   gpu.3.memory.total, .memory.used, .memory.reserved (bytes); .memory.unified = 1: NOT_SUPPORTED
 *   gpu.3.utilization (%), .temperature (C), .power, .power.limit (mW)
 *   gpu.3.ecc.corrected, .ecc.uncorrected, .remap.failure, .recovery (action of field 230), .throttle (bits)
 *   gpu.3.links = 18             NVLinks, .links.down = 4 7: those which are not active
 *   gpu.3.xid = 79 48            critical events so far: appending one raises it
 *   gpu.3.mig = 1                MIG mode, .mig.instances = 0 2: the slots of seven in use
 *   mig.uuid, mig.name, mig.memory.*   of an instance
 *
 * A call on a card on which another still hangs is noted in <state file>.overlaps.
 * The v1 memory call counts what the driver reserves as used, as the real one does.
 */
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

/* ---- the library ---- */

API int nvmlInitWithFlags(unsigned flags) {
    char value[64];
    (void) flags;
    hang(NULL, __func__);
    if (get(value, sizeof value, "error") || get(value, sizeof value, "error.%s", __func__)) return code(value);
    for (int c = 0; c < MAX_CARDS; c++)
        for (int s = 0; s <= MIG_SLOTS; s++) handles[c][s] = (handle_t) {c, s - 1};
    u64 loaded = epoch();
    pthread_mutex_lock(&lock);
    users = loaded == epoch_at_init ? users + 1 : 1;
    epoch_at_init = loaded;
    pthread_mutex_unlock(&lock);
    return OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int e = users ? OK : UNINITIALIZED;
    if (users) users--;
    pthread_mutex_unlock(&lock);
    return e;
}
API const char *nvmlErrorString(int e) {
    return e >= 0 && (size_t) e < sizeof ERRORS / sizeof *ERRORS ? ERRORS[e] : "UNKNOWN";
}

/* Writes text with \xNN turned into bytes. */
static int put(char *out, unsigned room, const char *text) {
    unsigned n = 0;
    for (unsigned byte; *text; n++) {
        if (n + 1 >= room) return INSUFFICIENT_SIZE;
        if (sscanf(text, "\\x%2x", &byte) == 1) { out[n] = (char) byte; text += 4; }
        else out[n] = *text++;
    }
    out[n] = 0;
    return OK;
}
API int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    SYSTEM();
    char value[80];
    return put(out, room, get(value, sizeof value, "driver") ? value : "580.95.05");
}
API int nvmlSystemGetNVMLVersion(char *out, unsigned room) { SYSTEM(); return put(out, room, "13.580.95.05"); }
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { SYSTEM(); *out = 13000; return OK; }
API int nvmlSystemGetCudaDriverVersion(int *out) { SYSTEM(); *out = 13000; return OK; }

API int nvmlDeviceGetCount_v2(unsigned *out) {
    SYSTEM();
    int cards[MAX_CARDS];
    *out = (unsigned) listed(cards);
    return OK;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **out) {
    int cards[MAX_CARDS], n = listed(cards);
    if (index >= (unsigned) n || cards[index] < 0 || cards[index] >= MAX_CARDS) return INVALID_ARGUMENT;
    handle_t whole = {cards[index], -1};
    char value[64];
    hang(&whole, __func__);
    if (!users || epoch() != epoch_at_init) return UNINITIALIZED;
    if (get(value, sizeof value, "error") || get(value, sizeof value, "gpu.%d.error.%s", whole.card, __func__))
        return code(value);
    *out = &handles[cards[index]][0];
    return OK;
}
static void uuid_of(const handle_t *h, char *out, size_t size) {
    if (get_of(h, "uuid", out, size)) return;
    if (h->slot >= 0) snprintf(out, size, "MIG-4b330000-%04x-5000-9000-%012x", h->slot, h->card);
    else snprintf(out, size, "GPU-4b330000-0000-4000-8000-%012x", h->card);
}
API int nvmlDeviceGetUUID(handle_t *h, char *out, unsigned room) {
    DEVICE(h);
    char value[160];
    uuid_of(h, value, sizeof value);
    return put(out, room, value);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **out) {
    SYSTEM();
    int cards[MAX_CARDS], n = listed(cards);
    for (int i = 0; i < n; i++)
        for (int s = 0; s <= MIG_SLOTS; s++) {
            char value[160];
            uuid_of(&handles[cards[i]][s], value, sizeof value);
            if (!strcmp(value, uuid)) { *out = &handles[cards[i]][s]; return OK; }
        }
    return NOT_FOUND;
}
API int nvmlDeviceGetName(handle_t *h, char *out, unsigned room) {
    VALUE(h);
    char value[160];
    if (get_of(h, "name", value, sizeof value)) return put(out, room, value);
    return put(out, room, h->slot >= 0 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200");
}
API int nvmlDeviceGetIndex(handle_t *h, unsigned *out) {
    DEVICE(h);
    int cards[MAX_CARDS], n = listed(cards);
    for (int i = 0; i < n; i++) if (cards[i] == h->card) { *out = (unsigned) i; return OK; }
    return NOT_FOUND;
}
API int nvmlDeviceGetMinorNumber(handle_t *h, unsigned *out) { WHOLE_CARD(h); *out = (unsigned) h->card; return OK; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
API int nvmlDeviceGetPciInfo_v3(handle_t *h, pci_t *out) {
    DEVICE(h);
    char value[80];
    memset(out, 0, sizeof *out);
    out->bus = 0x18 + 0x10 * (unsigned) h->card;
    if (get_of(h, "bus", value, sizeof value)) return put(out->bus_id, sizeof out->bus_id, value);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus & 0xff);
    return OK;
}

static int memory(const handle_t *h, u64 *total, u64 *reserved, u64 *used) {
    if (number_of(h, "memory.unified", 0)) return NOT_SUPPORTED;
    *total = number_of(h, "memory.total", h->slot < 0 ? 150754820096ULL : 18844352512ULL);
    *reserved = number_of(h, "memory.reserved", h->slot < 0 ? 635437056ULL : 79429632ULL);
    *used = number_of(h, "memory.used", 0);
    return OK;
}
typedef struct { u64 total, free, used; } memory_v1_t;
API int nvmlDeviceGetMemoryInfo(handle_t *h, memory_v1_t *out) {
    VALUE(h);
    u64 total, reserved, used;
    int e = memory(h, &total, &reserved, &used);
    if (!e) *out = (memory_v1_t) {total, total - reserved - used, used + reserved};
    return e;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
API int nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory_v2_t *out) {
    VALUE(h);
    u64 total, reserved, used;
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    int e = memory(h, &total, &reserved, &used);
    if (!e) *out = (memory_v2_t) {out->version, total, reserved, total - reserved - used, used};
    return e;
}

typedef struct { unsigned gpu, memory; } utilization_t;
API int nvmlDeviceGetUtilizationRates(handle_t *h, utilization_t *out) {
    WHOLE_CARD(h);
    if (number_of(h, "mig", 0)) return NOT_SUPPORTED;
    *out = (utilization_t) {(unsigned) number_of(h, "utilization", 0), 0};
    return OK;
}
API int nvmlDeviceGetTemperature(handle_t *h, int sensor, unsigned *out) {
    WHOLE_CARD(h);
    if (sensor) return INVALID_ARGUMENT;
    *out = (unsigned) number_of(h, "temperature", 35);
    return OK;
}
typedef struct { unsigned version; int sensor, celsius; } temperature_t;
API int nvmlDeviceGetTemperatureV(handle_t *h, temperature_t *out) {
    WHOLE_CARD(h);
    if (out->version != (sizeof *out | 1u << 24)) return VERSION_MISMATCH;
    out->celsius = (int) number_of(h, "temperature", 35);
    return out->sensor ? INVALID_ARGUMENT : OK;
}
API int nvmlDeviceGetPowerUsage(handle_t *h, unsigned *out) {
    WHOLE_CARD(h);
    *out = (unsigned) number_of(h, "power", 120000);
    return OK;
}
API int nvmlDeviceGetEnforcedPowerLimit(handle_t *h, unsigned *out) {
    WHOLE_CARD(h);
    *out = (unsigned) number_of(h, "power.limit", 700000);
    return OK;
}
API int nvmlDeviceGetTotalEccErrors(handle_t *h, int uncorrected, int counter, u64 *out) {
    WHOLE_CARD(h);
    (void) counter;
    *out = number_of(h, uncorrected ? "ecc.uncorrected" : "ecc.corrected", 0);
    return OK;
}
API int nvmlDeviceGetRemappedRows(handle_t *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                  unsigned *failure) {
    WHOLE_CARD(h);
    *corrected = *uncorrected = *pending = 0;
    *failure = number_of(h, "remap.failure", 0) != 0;
    return OK;
}
API int nvmlDeviceGetCurrentClocksEventReasons(handle_t *h, u64 *out) {
    WHOLE_CARD(h);
    *out = number_of(h, "throttle", 0);
    return OK;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t *h, u64 *out) {
    WHOLE_CARD(h);
    *out = number_of(h, "throttle", 0);
    return OK;
}
API int nvmlDeviceGetNvLinkState(handle_t *h, unsigned link, unsigned *out) {
    WHOLE_CARD(h);
    if (link >= number_of(h, "links", 0)) return link < 36 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    char value[160];
    int down[64], n = get_of(h, "links.down", value, sizeof value) ? numbers(value, down, 64) : 0;
    *out = 1;
    for (int i = 0; i < n; i++) if (down[i] == (int) link) *out = 0;
    return OK;
}
typedef struct { unsigned field, scope; long long timestamp, latency; int type, error; union { unsigned u; u64 wide; } value; } field_t;
API int nvmlDeviceGetFieldValues(handle_t *h, int n, field_t *fields) {
    WHOLE_CARD(h);
    for (int i = 0; i < n; i++) {
        char value[32];
        int known = fields[i].field == 230 && get_of(h, "recovery", value, sizeof value);
        fields[i].error = known ? OK : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].value.wide = known ? strtoull(value, NULL, 0) : 0;
    }
    return OK;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, unsigned *n, void *out) {
    VALUE(h);
    (void) out;
    *n = 0;
    return OK;
}

/* ---- MIG ---- */

API int nvmlDeviceGetMigMode(handle_t *h, unsigned *current, unsigned *pending) {
    DEVICE(h);
    *current = *pending = (unsigned) number_of(h, "mig", 0);
    return h->slot >= 0 ? NOT_SUPPORTED : OK;
}
API int nvmlDeviceGetMaxMigDeviceCount(handle_t *h, unsigned *out) { DEVICE(h); *out = MIG_SLOTS; return OK; }
API int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *h, unsigned index, handle_t **out) {
    DEVICE(h);
    char value[64];
    int used[MIG_SLOTS], n = get_of(h, "mig.instances", value, sizeof value) ? numbers(value, used, MIG_SLOTS) : 0;
    for (int i = 0; i < n && number_of(h, "mig", 0); i++)
        if (used[i] == (int) index && index < MIG_SLOTS) { *out = &handles[h->card][index + 1]; return OK; }
    return NOT_FOUND;
}
API int nvmlDeviceIsMigDeviceHandle(handle_t *h, unsigned *out) { DEVICE(h); *out = h->slot >= 0; return OK; }
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t *h, handle_t **out) {
    DEVICE(h);
    *out = &handles[h->card][0];
    return h->slot >= 0 ? OK : INVALID_ARGUMENT;
}

/* ---- critical events ---- */

typedef struct { int told[MAX_CARDS]; } event_set_t;    /* events of a card told so far; -1: not registered */
typedef struct { handle_t *device; u64 type, data; unsigned gpu_instance, compute_instance; } event_t;

static int events_of(int card, int *out, int room) {
    char value[256];
    return get(value, sizeof value, "gpu.%d.xid", card) ? numbers(value, out, room) : 0;
}
API int nvmlEventSetCreate(event_set_t **out) {
    SYSTEM();
    *out = malloc(sizeof **out);
    for (int c = 0; c < MAX_CARDS; c++) (*out)->told[c] = -1;
    return OK;
}
API int nvmlEventSetFree(event_set_t *set) { free(set); return OK; }
API int nvmlDeviceGetSupportedEventTypes(handle_t *h, u64 *out) { WHOLE_CARD(h); *out = 8; return OK; }
API int nvmlDeviceRegisterEvents(handle_t *h, u64 types, event_set_t *set) {
    WHOLE_CARD(h);
    int xids[64];
    if (types & 8) set->told[h->card] = events_of(h->card, xids, 64);
    return OK;
}
API int nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned milliseconds) {
    const struct timespec step = {0, 20000000};
    for (unsigned waited = 0;; waited += 20) {
        int e = refusal(NULL, __func__);
        if (e) return e;
        for (int c = 0; c < MAX_CARDS; c++) {
            int xids[64];
            if (set->told[c] < 0 || events_of(c, xids, 64) <= set->told[c]) continue;
            *out = (event_t) {&handles[c][0], 8, (u64) xids[set->told[c]++], ~0u, ~0u};
            return OK;
        }
        if (waited >= milliseconds) return TIMED_OUT;
        nanosleep(&step, NULL);
    }
}
