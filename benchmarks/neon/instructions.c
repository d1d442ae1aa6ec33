/* A plugin of QEMU's user emulation that counts the instructions that a program executes, printed at its end.
   The declarations are those of qemu-plugin.h, version 1, which Debian's qemu-user does not bring. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef uint64_t id_t_;
void qemu_plugin_register_vcpu_tb_trans_cb(id_t_, void (*)(id_t_, struct qemu_plugin_tb*));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int add, void* to, uint64_t n);
void qemu_plugin_register_atexit_cb(id_t_, void (*)(id_t_, void*), void*);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
static uint64_t executed;

static void translated(id_t_ id, struct qemu_plugin_tb* block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &executed, qemu_plugin_tb_n_insns(block));
}
static void ended(id_t_ id, void* unused) {
    (void)id, (void)unused;
    fprintf(stderr, "executed %" PRIu64 "\n", executed);
}
__attribute__((visibility("default"))) int qemu_plugin_install(id_t_ id, const void* info, int count, char** arguments) {
    (void)info, (void)count, (void)arguments;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
