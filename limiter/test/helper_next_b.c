/* Second of two libraries that define the same symbol. */
__attribute__((visibility("default"))) const char *tessera_probe(void);

const char *tessera_probe(void)
{
    return "b";
}
