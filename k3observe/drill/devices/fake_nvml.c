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
#include "fake_nvml_state.h"

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
